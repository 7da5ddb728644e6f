"""Content that a schema knows nothing of: told to be well-formed, and looked at no further.

What a lax wildcard takes is valid if it is well-formed, and nothing in it has a declaration, an xsi:type or an xml:id
(XML Schema part 1, section 3.10.1). So names that the schema declares, attributes with prefixes and declarations of
namespaces may not come here, and prefixes are those that the element around declares or inherits.
"""

from __future__ import annotations

import re
from typing import Final

from jbi_pubsub.core.documents.shape import COMMENT, DocumentElement, Particle

MAX_LEVELS: Final = 4
"""Levels of elements in what a wildcard takes."""
_TEXT: Final = rb"[ -%'-;=?-~\t\r\n\x80-\xff]"
_VALUE: Final = rb"""(?:"[ !#-%'-;=?-~\x80-\xfc\xff]*+"|'[ -%(-;=?-~\x80-\xfc\xff]*+')"""
_ELEMENT: Final = (
    rb"<((?>%b)%b[A-Za-z_][A-Za-z0-9._-]*+)"
    rb"(?:[ \t\r\n]++%b([A-Za-z_][A-Za-z0-9._-]*+)=%b(?![^<>]*?[ \t\r\n]\%d[ \t\r\n]*+=)){0,8}+[ \t\r\n]*+"
    rb"(?:/>|>(?:%b++|%b%b)*+</\%d[ \t\r\n]*+>)"
)
"""An element of any name, with attributes and elements in it."""


def foreign_content(shape: DocumentElement, content: Particle) -> tuple[bytes, bytes]:
    """Expressions for all that a wildcard takes in an element: up to where it may end, and as it has to be."""
    wildcard = content.foreign
    assert wildcard is not None
    declared = [re.escape(tag.rpartition("}")[2]).encode() for tag in content.names]
    ends = [b"/" + re.escape(shape.name) + rb"[ \t\r\n]*+>"]
    ends += [rb"(?:[^ \t\r\n<>/:]*+:)?+%b[ \t\r\n/>]" % name for name in declared]
    outside = rb"[^<]*+(?:<(?!%b)[^<]*+)*+" % b"|".join(ends)
    names = [*declared, *(re.escape(name).encode() for name in sorted(wildcard.declared))]
    other = rb"(?!(?:%b)[ \t\r\n/>=])" % b"|".join([*names, b"xmlns"])
    spaces = {b"" if prefix is None else re.escape(prefix).encode() + b":": uri for prefix, uri in shape.spaces.items()}
    taken = [prefix for prefix, uri in {b"": "", **spaces}.items() if wildcard.takes(f"{{{uri}}}x" if uri else "x")]
    inside = b""
    for level in range(MAX_LEVELS, 0, -1):
        prefixes = b"|".join(sorted(taken if level == 1 else {b"", *spaces}, reverse=True))
        start = prefixes, other, other, _VALUE, 2 * level
        inside = _ELEMENT % (*start, _TEXT, COMMENT, inside and b"|" + inside, 2 * level - 1)
    text = _TEXT if wildcard.mixed else rb"[ \t\r\n\xfd]"
    return outside, rb"(?:%b++|%b%b)*+" % (text, COMMENT, b"|" + inside if taken else b"")
