"""Modules of object models as XML: the OMT of IEEE 1516.2-2010, of any namespace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import Element, parse_metadata

from .exceptions import ErrorReadingFom

MODULE_BYTES: Final = 16 * 1024 * 1024
"""Limit of one module."""


_OTHERS: Final = (
    (re.compile(rb"<objectModel\s[^<>]{0,999}\bDTDversion|<objectClass\s[^<>]{0,999}\bname\s{0,9}="), "IEEE 1516-2000"),
    (re.compile(rb"\A(\xef\xbb\xbf)?(\s|;[^\n]*\n)*\(\s*FED\b", re.IGNORECASE), "HLA 1.3 (.fed)"),
    (re.compile(rb"\A\s*\(\s*OMDT\b", re.IGNORECASE), "HLA 1.3 (.omt, .omd)"),
)
"""Beginnings of files that are models, but of an older standard; in their first bytes."""
_OTHERS_BYTES: Final = 64 * 1024


def root_of(name: str, data: bytes) -> Element:
    """The root of a module. Raises ErrorReadingFom."""
    for pattern, what in _OTHERS:
        if pattern.search(data[:_OTHERS_BYTES]):
            raise ErrorReadingFom(
                f"{name} is a model of {what}; those of IEEE 1516-2010 and 1516-2025 are read",
                hint="Open it in an editor of object models, and save it as OMT of IEEE 1516-2010 (HLA Evolved)",
                file=name,
            )
    try:
        return parse_metadata(data, what=f"the module {name}", limit=MODULE_BYTES)
    except JbiError as exc:
        raise ErrorReadingFom(exc.message, hint=exc.hint or "Give a file in OMT XML", file=name) from exc


def is_of_2025(root: Element) -> bool:
    """A module of IEEE 1516.2-2025, by its namespace."""
    return str(root.tag).startswith("{http://standards.ieee.org/IEEE1516-2025")


def local_name(element: Element) -> str:
    """The name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def elements(of: Element) -> Iterator[Element]:
    """The elements in one, without comments and the like."""
    return (each for each in of if isinstance(each.tag, str))


def children(element: Element, name: str) -> list[Element]:
    """Those of that name, of any namespace."""
    return [each for each in elements(element) if local_name(each) == name]


def text_of(element: Element, name: str, most: int = 255) -> str:
    """The text of the first child of that name, as many characters as that; "": there is none."""
    found = children(element, name)
    return (found[0].text or "").strip()[:most] if found else ""
