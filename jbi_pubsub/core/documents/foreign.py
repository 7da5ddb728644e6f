"""Content that a schema knows nothing of: told to be well-formed, and looked at no further.

What a lax wildcard takes is valid if it is well-formed, and nothing in it has a declaration, an xsi:type or an xml:id
(XML Schema part 1, section 3.10.1). So names that the schema declares, attributes with prefixes and declarations of
namespaces may not come here, and prefixes are those that the element around declares or inherits.
"""

from __future__ import annotations

import re
from typing import Final

from jbi_pubsub.core.documents.shape import COMMENT, DocumentElement

MAX_LEVELS: Final = 4
"""Levels of elements in what a wildcard takes."""
_TEXT: Final = rb"[ -%'-;=?-~\t\r\n\x80-\xff]*+"
_VALUE: Final = rb"""(?:"[ !#-%'-;=?-~\x80-\xfc\xff]*+"|'[ -%(-;=?-~\x80-\xfc\xff]*+')"""
_ELEMENT: Final = (
    rb"<(?P<e%(n)s>(?>%(prefixes)s)%(other)s[A-Za-z_][A-Za-z0-9._-]*+)"
    rb"(?:[ \t\r\n]++%(other)s(?P<a%(n)s>[A-Za-z_][A-Za-z0-9._-]*+)=%(value)s"
    rb"(?![^<>]*?[ \t\r\n](?P=a%(n)s)[ \t\r\n]*+=)){0,8}+[ \t\r\n]*+"
    rb"(?:/>|>%(text)s(?:(?:%(inside)s%(comment)s)%(text)s)*+</(?P=e%(n)s)[ \t\r\n]*+>)"
)
"""An element of any name, with attributes and elements in it. Its groups, which have names, tell the end tag, and an
attribute that comes twice."""


def foreign_content(shape: DocumentElement, number: int) -> bytes:
    """Expression for all that a wildcard takes in an element; `number`: no other one in an expression has it."""
    content = shape.content
    assert content is not None
    wildcard = content.foreign
    assert wildcard is not None
    declared = {tag.rpartition("}")[2] for tag in content.names} | wildcard.declared
    names = [*(re.escape(name).encode() for name in sorted(declared)), b"xmlns"]
    other = rb"(?!(?:%b)[ \t\r\n/>=])" % b"|".join(names)
    spaces = {b"" if prefix is None else re.escape(prefix).encode() + b":": uri for prefix, uri in shape.spaces.items()}
    taken = [prefix for prefix, uri in {b"": "", **spaces}.items() if wildcard.takes(f"{{{uri}}}x" if uri else "x")]
    inside = b""
    for level in range(MAX_LEVELS, 0, -1):
        prefixes = b"|".join(sorted(taken if level == 1 else {b"", *spaces}, reverse=True))
        parts = {b"n": b"%d_%d" % (number, level), b"prefixes": prefixes, b"other": other, b"inside": inside}
        inside = _ELEMENT % {**parts, b"text": _TEXT, b"value": _VALUE, b"comment": COMMENT} + b"|"
    text = _TEXT if wildcard.mixed else rb"[ \t\r\n\xfd]*+"
    return rb"%b(?:(?:%b%b)%b)*+" % (text, inside if taken else b"", COMMENT, text)
