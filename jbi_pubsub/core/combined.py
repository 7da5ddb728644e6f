"""The combined view of an object: what the platform says of it, with its publisher's metadata as the last child.

The paper on Gemini (section 5.8) has predicates asked of this document, so that one XPath may speak of both:
`/og:metadata/og:baseObject[og:PayloadLength>1000000]`, `/og:metadata/image`. It is made for whoever asks, and kept by
nobody; the published metadata are never changed. Below og:baseObject there are, as printed there, og:InfoObjectType
(og:Name, og:MajorVersion, og:MinorVersion), og:PublicationTime, og:InfoObjectID, og:PublisherID (the name that the
publisher's adapter was given), og:MetadataLength and og:PayloadLength (bytes as published); and of the node that it was
published at og:NodeID and og:NodeAddresses, with an og:NodeAddress for each.
"""

from __future__ import annotations

import copy
import threading
from datetime import UTC, datetime
from typing import Final, NamedTuple

from lxml import etree

from jbi_pubsub.core.cache import Cache

from .info_object import Head
from .xml import NO_XML, Element, read_metadata

NAMESPACE: Final = "http://gdc4s.com/oim/gemini"
"""Namespace of what the platform says; the prefix `og` stands for it unless another is given."""
OWN_BYTES: Final = 1_000
"""Bytes of the platform's part, about: with the metadata the size of the document."""

_OG: Final = f"{{{NAMESPACE}}}"
TOP: Final = f"{_OG}metadata"
"""Its document element."""
_TOP: Final = (TOP,)
_BASE: Final = (*_TOP, f"{_OG}baseObject")
_KIND: Final = (*_BASE, f"{_OG}InfoObjectType")
_ADDRESSES: Final = (*_BASE, f"{_OG}NodeAddresses")
PATHS: Final = (
    _TOP,
    _BASE,
    _KIND,
    *((*_KIND, _OG + name) for name in ("Name", "MajorVersion", "MinorVersion")),
    *(
        (*_BASE, _OG + name)
        for name in ("PublicationTime", "InfoObjectID", "PublisherID", "MetadataLength", "PayloadLength", "NodeID")
    ),
    _ADDRESSES,
    (*_ADDRESSES, f"{_OG}NodeAddress"),
)
"""Paths of what the platform says: tags from the document element down."""
ALWAYS: Final = frozenset(path for path in PATHS if not path[2:] or not path[2].startswith(f"{_OG}Node"))
"""Those that are in each document."""
PAYLOAD_LENGTH: Final = (*_BASE, f"{_OG}PayloadLength")
ABOVE: Final = _TOP
"""Elements above the publisher's metadata."""

_NSMAP: Final = {"og": NAMESPACE}
FRAMES_MOST: Final = 256
"""Remembered by a thread."""
_own = threading.local()


class Provenance(NamedTuple):
    """Publisher of the objects of a registration, and its place."""

    publisher: str = ""
    """Name of its adapter."""
    node: str = ""
    """Id of the node that it published at, or of the delegate's archive; of one that has neither, and so changes with
    each start, its own; "" is not told."""
    addresses: tuple[str, ...] = ()
    """Hosts under which that is reached."""
    owner: str = ""
    """Owner of the registration: see PublisherRequest."""
    is_relayed: bool = False
    """A bridge or network has brought them."""


_FrameKey = tuple[str, str, tuple[str, ...], Provenance]
"""Name and version of a type, platforms that were passed, and whose it is."""


def combined(head: Head, origin: Provenance) -> Element:
    """The document, which is the caller's. Metadata that are absent, or no XML, are not in it."""
    frames: Cache[_FrameKey, Element] | None = getattr(_own, "frames", None)
    if frames is None:
        frames = _own.frames = Cache(FRAMES_MOST, _frame)
    top = copy.deepcopy(frames[head.type_name, head.type_version, head.via, origin])
    _, published, object_id, _, metadata_length, payload_length, *_ = top[0]
    published.text = datetime.fromtimestamp(head.published, UTC).isoformat(timespec="milliseconds")
    object_id.text = head.object_id
    metadata_length.text = str(len(head.metadata))
    payload_length.text = str(head.payload_length)
    if len(head.metadata) and (root := read_metadata(bytes(head.metadata))) is not None:
        top.append(root)
    return top


def _frame(key: _FrameKey) -> Element:
    """Part that is the same for all objects of a registration: a copy of it is half as dear as another one."""
    type_name, version, via, origin = key
    top = etree.Element(f"{{{NAMESPACE}}}metadata", nsmap=_NSMAP)
    base = _add(top, "baseObject")
    major, _, minor = version.partition(".")
    kind = _add(base, "InfoObjectType")
    for name, text in (("Name", type_name), ("MajorVersion", major), ("MinorVersion", minor)):
        _add(kind, name, text)
    for name in ("PublicationTime", "InfoObjectID", "PublisherID", "MetadataLength", "PayloadLength"):
        _add(base, name, origin.publisher if name == "PublisherID" else None)
    if node := via[0] if via else origin.node:  # where it came by relays the first one has sent it
        _add(base, "NodeID", node)
        addresses = _add(base, "NodeAddresses")
        for address in () if via else origin.addresses:
            _add(addresses, "NodeAddress", address)
    return top


def _add(parent: Element, name: str, text: str | None = None) -> Element:
    made = etree.SubElement(parent, f"{{{NAMESPACE}}}{name}")
    if text is not None:
        made.text = text if text.isprintable() else NO_XML.sub("\ufffd", text)
    return made
