"""Values that peers send: msgpack, decoded against a type."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .errors import ProtocolError
from .info_object import Part

T = TypeVar("T")


def decoded(decoder: msgspec.msgpack.Decoder[T], data: Part, what: str) -> T:
    """The value in `data`. Raises ProtocolError, which says `what` it was to be, for all that it can be instead: other
    bytes, other types, text that is no UTF-8, values nested a thousand deep."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, MemoryError) as exc:
        raise ProtocolError(f"bad {what}: {exc}"[:600]) from exc
