"""Modules of object models as XML: the OMT of IEEE 1516.2-2010, of any namespace."""

from __future__ import annotations

from typing import Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import Element, parse_metadata

from .exceptions import ErrorReadingFom

MODULE_BYTES: Final = 16 * 1024 * 1024
"""Limit of one module."""


def root_of(name: str, data: bytes) -> Element:
    """The root of a module. Raises ErrorReadingFom."""
    try:
        return parse_metadata(data, what=f"the module {name}", limit=MODULE_BYTES)
    except JbiError as exc:
        raise ErrorReadingFom(exc.message, hint=exc.hint or "Give a file in OMT XML", file=name) from exc


def local_name(element: Element) -> str:
    """The name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def children(element: Element, name: str) -> list[Element]:
    """Those of that name, of any namespace."""
    return [each for each in element if isinstance(each.tag, str) and local_name(each) == name]


def text_of(element: Element, name: str, most: int = 255) -> str:
    """The text of the first child of that name, as many characters as that; "": there is none."""
    found = children(element, name)
    return (found[0].text or "").strip()[:most] if found else ""
