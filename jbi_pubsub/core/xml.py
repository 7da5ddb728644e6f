"""The only set-up of lxml's parsers: safe and bounded.

Rules: no external entities, no DTD, no network, no DOCTYPE at all (an unresolved entity would cut text
short), size and depth limits. lxml's own exceptions do not leave this module.
"""

from __future__ import annotations

import codecs
import ctypes
import functools
import re
import sys
import threading
from typing import Any, Final

from lxml import etree

from .errors import MetadataError, OversizeError

MAX_METADATA_BYTES: Final = 1 << 20
"""Metadata describe an object; 1 MiB is two hundred times the largest CAP alert seen. Protects parse time."""

MAX_XML_PAYLOAD_BYTES: Final = 64 << 20
MAX_XML_PAYLOAD_NODES: Final = 2_000_000
"""Above these a payload is not parsed for filtering. A tree takes its texts and some 130 bytes a node: 330 MB at most.
Of the shortest elements, `<x/>`, 64 MiB would be 17 million."""

PARSER_NAME_BYTES: Final = 50_000
PARSER_TEXT_BYTES: Final = 10_000_000
"""libxml2's own limits on a name, and on a text, comment, instruction or start tag."""

LOOK_BYTES: Final = 64
"""In so many it is seen whether a payload may be XML."""

HEAD_BYTES: Final = 1 << 20
"""Bytes of a payload in which a DOCTYPE is looked for with the parser: it comes before the document element."""

GIVE_BACK_BYTES: Final = 1 << 20
"""Memory of a tree from so large a payload is given back to the system at once (1 to 10 ms)."""

MAX_DEPTH: Final = 200
"""Below libxml2's own 256, so that our message is the one that is seen."""

SHORTEST_LEVEL: Final = 7
"""Bytes of a nested element at least, `<a></a>`: a document of n bytes is at most n / 7 levels deep."""

SHORTEST_NODE: Final = 2
"""Bytes of a node at least: `x<a/>` are two in five."""

_PAYLOAD: Final = "an XML payload has"
_PROLOG: Final = re.compile(rb"(?:(<\?xml\s[^?>]*\?>)|(?!<\?xml\s))\s*<(.)")
_DECLARATION: Final = re.compile(r"[\ufeff \t\r\n]*<\?xml\s.*?\?>\s*", re.DOTALL)
_PLAIN: Final = re.compile(
    rb"""encoding\s*=\s*["'](utf-8|(us-)?ascii|iso-8859-\d{1,2}|windows-125\d)["']""", re.IGNORECASE
)
"""Encodings in which the bytes of ASCII characters mean these and nothing else."""
_UTF8: Final = re.compile(rb"""encoding\s*=\s*["']utf-8["']""", re.IGNORECASE)

NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may have (XML 1.0, section 2.2)."""

NAME_START: Final = (
    r"A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef"
    r"\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
NAME_LETTER: Final = NAME_START + r"0-9.\u00b7\u0300-\u036f\u203f\u2040\-"
"""Characters that a name begins with, and has, in the brackets of a pattern (XML 1.0, section 2.3, without the colon).
The hyphen is the last. Python's `\\w` has no combining marks, as names in Hindi, Thai and Hebrew do."""

XSD: Final = "http://www.w3.org/2001/XMLSchema"
"""The namespace of XML Schema."""

Element = etree._Element

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""glibc's; other C libraries have none, and some need none."""

_SAFE: Final[Any] = {
    "resolve_entities": False, "no_network": True, "load_dtd": False, "dtd_validation": False,
    "attribute_defaults": False,
}  # fmt: skip
_UNREAD: Final = (
    etree.ErrorTypes.ERR_RESOURCE_LIMIT, etree.ErrorTypes.ERR_NAME_TOO_LONG, etree.ErrorTypes.ERR_UNKNOWN_VERSION,
    etree.ErrorTypes.ERR_UNSUPPORTED_ENCODING,
)  # fmt: skip
"""Fatal errors of the parser that do not say that a document is malformed."""
_IDS: Final = (etree.ErrorTypes.DTD_ID_REDEFINED, etree.ErrorTypes.DTD_XMLID_VALUE)


class _OwnParsers(threading.local):
    """Parsers of a thread: making one costs as much as parsing figure 1."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[bool, bool], etree.XMLParser] = {}
        self.is_too_deep: Final = etree.XPath("boolean(" + "/*" * (MAX_DEPTH + 1) + ")")
        """Whether there is an element below MAX_DEPTH others: a walk in Python costs more than parsing."""


_own: Final = _OwnParsers()


def parser(*, huge: bool = False, ids: bool = True) -> etree.XMLParser:
    """A new safe parser (lxml parsers are cheap, and not shared between threads). `huge`: without libxml2's own limits
    on texts, names and what entities grow to; only for what has no DOCTYPE, and no more bytes than may be. `ids`: what
    `xml:id` says is known, and refused if it is no id, or another element's."""
    made: etree.XMLParser = etree.XMLParser(**_SAFE, huge_tree=huge, collect_ids=ids)
    return made


def parse_metadata(data: bytes, *, what: str = "metadata", limit: int = MAX_METADATA_BYTES) -> Element:
    """The document element of `data`.

    Raises MetadataError (malformed, DOCTYPE, too deep; facts `line`, `column`) or OversizeError. `what` names
    the document in the message.
    """
    if len(data) > limit:
        raise OversizeError(f"{what} has {len(data)} bytes, the limit is {limit}", size=len(data), limit=limit)
    try:
        root = etree.fromstring(data, _parser())
    except (etree.XMLSyntaxError, ValueError) as exc:
        line, column = getattr(exc, "position", (0, 0))
        raise MetadataError(
            f"{what} is not well-formed XML: {getattr(exc, 'msg', exc)}",  # lxml's text adds "(<string>, line 1)"
            hint="Check the document with an XML editor or xmllint",
            line=line,
            column=column,
        ) from exc
    problem = _refused(root, data)
    if problem:
        raise MetadataError(f"{what} {problem}", hint="Remove it: entities and DTDs are never resolved")
    return root


def read_metadata(data: bytes) -> Element | None:
    """The same for metadata that need not be any; None: they are none, or not ours to read."""
    try:
        return parse_metadata(data)
    except (MetadataError, OversizeError):
        return None


def parse_payload(data: bytes) -> Element | None:
    """The document element of `data`; None: it is no well-formed XML.

    Paper section 2.4(5): the dissemination node itself determines whether a payload is XML. Raises OversizeError for
    what is XML beyond the limits (or with a DOCTYPE, or not as namespaces are), and for what may be, as far as it was
    looked at.
    """
    if not looks_like_xml(data):
        return None
    if len(data) > MAX_XML_PAYLOAD_BYTES:
        raise OversizeError(f"{_PAYLOAD} {len(data)} bytes, the limit is {MAX_XML_PAYLOAD_BYTES}", size=len(data))
    if len(data) > SHORTEST_NODE * MAX_XML_PAYLOAD_NODES and most_nodes(data) > MAX_XML_PAYLOAD_NODES:
        raise OversizeError(f"{_PAYLOAD} more than {MAX_XML_PAYLOAD_NODES} nodes", size=len(data))
    is_huge = len(data) > PARSER_NAME_BYTES and (_shows_no_doctype(data) or _begins_without_doctype(data))
    root = _read(data, is_huge=is_huge)
    if root is not None and (problem := _refused(root, data)):
        raise OversizeError(f"payload {problem}", size=len(data))
    return root


def most_nodes(data: bytes) -> int:
    """A bound for the nodes of a document, told from its bytes: never fewer than there are (some 10 ms for a megabyte).

    An element, comment, instruction or CDATA section has a `<` of its own; a text begins behind a `>` that is followed
    by something else than `<`; an attribute has a `=` and two quotes. In UTF-16 and UTF-32 these bytes occur in other
    characters as well, which counts too many; where they may mean anything, two bytes are a node.
    """
    mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    found = _PROLOG.match(data, mark)
    is_wide = data[:2] in (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE) or b"\0" in data[:4]
    if not is_wide and (found is None or not _is_plain(found[1])):
        return len(data) // SHORTEST_NODE
    markup = data.count(b"<") - data.count(b"</")
    texts = data.count(b">") - data.count(b"><")
    attributes = min(data.count(b"="), (data.count(b'"') + data.count(b"'")) // 2)
    return markup + texts + attributes


def give_back(size: int) -> None:
    """Give the memory of trees that are gone back to the system, if the payload had many bytes (`size`): the C library
    keeps it for itself else, and after one large payload a delegate would have its size for good."""
    if size >= GIVE_BACK_BYTES and _trim is not None:
        _trim(0)


def looks_like_xml(data: bytes) -> bool:
    """A cheap first look: the first byte is '<' after a byte order mark and white space, or a UTF-16/32 one."""
    head = data[:LOOK_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n\x00")
    return head[:1] == b"<" or data[:2] in (b"\xff\xfe", b"\xfe\xff")


def to_bytes(document: bytes | str | Element) -> bytes:
    """Metadata as applications give it (bytes, text or an lxml element) as UTF-8 or original bytes."""
    if isinstance(document, bytes):
        return document
    if isinstance(document, str):
        # lxml refuses text with an encoding declaration; bytes of it must agree with the declaration.
        declaration = _DECLARATION.match(document)
        return document[declaration.end() if declaration else 0 :].encode()
    return etree.tostring(document, encoding="UTF-8", with_tail=False)


def path_of(node: Element) -> str:
    """A readable path: /metadata/RequiredMetadata/keywords[2]."""
    return str(node.getroottree().getpath(node))


def _read(data: bytes, *, is_huge: bool, ids: bool = True) -> Element | None:
    """See parse_payload. A document is malformed if the parser's first fatal error says so: other errors are of
    namespaces and ids, which well-formed XML may have."""
    used = _parser(huge=is_huge, ids=ids)
    try:
        return etree.fromstring(data, used)
    except (etree.XMLSyntaxError, ValueError) as exc:
        if ids and getattr(exc, "code", 0) in _IDS:
            return _read(data, is_huge=is_huge, ids=False)
        fatal = [each.type for each in used.error_log if each.level == etree.ErrorLevels.FATAL]
        if not fatal or fatal[0] in _UNREAD or (len(data) > PARSER_TEXT_BYTES and not is_huge):
            why = str(getattr(exc, "msg", exc)).partition(",")[0]  # an option of libxml2's follows
            raise OversizeError(f"{_PAYLOAD} what is not read: {why}", size=len(data)) from exc
        return None


def _parser(*, huge: bool = False, ids: bool = True) -> etree.XMLParser:
    found = _own.by_kind.get((huge, ids))
    if found is None:
        found = _own.by_kind[huge, ids] = parser(huge=huge, ids=ids)
    return found


def _begins_without_doctype(data: bytes) -> bool:
    """Whether the document element comes, and nothing like that before it, as the parser reads it within its limits."""
    head = etree.XMLPullParser(("start",), **_SAFE)
    try:
        head.feed(data[:HEAD_BYTES])
        _, root = next(head.read_events())
    except (etree.XMLSyntaxError, StopIteration):
        return False
    info = root.getroottree().docinfo
    return not (info.doctype or info.internalDTD is not None)


def _refused(root: Element, data: bytes) -> str:
    """Fault of a document."""
    if not _shows_no_doctype(data):
        info = root.getroottree().docinfo
        if info.doctype or info.internalDTD is not None:
            return "has a DOCTYPE"
    if len(data) > MAX_DEPTH * SHORTEST_LEVEL and _own.is_too_deep(root):
        return f"is nested deeper than {MAX_DEPTH} elements"
    return ""


def _shows_no_doctype(data: bytes) -> bool:
    """Whether the bytes alone show that there is no DOCTYPE: the document element comes at once or behind an XML
    declaration, or the word is nowhere. Only where markup is ASCII: in UTF-16, UTF-7 or EBCDIC a DOCTYPE would be other
    bytes; then the parser is asked.
    """
    found = _PROLOG.match(data)
    if found is None:
        return False
    declaration, begins = found.groups()
    return (begins not in b"!?" or b"<!DOCTYPE" not in data) and _is_plain(declaration)


def has_plain_markup(data: bytes) -> bool:
    """Whether, in well-formed `data`, the bytes of ASCII characters mean these and nothing else."""
    found = _PROLOG.match(data)
    return found is not None and _is_plain(found[1])


def is_utf8(declaration: bytes) -> bool:
    """Whether characters beyond ASCII are written in UTF-8 below this XML declaration, or none."""
    return b"encoding" not in declaration or _UTF8.search(declaration) is not None


@functools.lru_cache(maxsize=8)  # all documents of a source have the same
def _is_plain(declaration: bytes | None) -> bool:
    return declaration is None or b"encoding" not in declaration or _PLAIN.search(declaration) is not None
