"""Values that peers send: msgpack, decoded against a type."""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

from .errors import ProtocolError
from .info_object import Part

T = TypeVar("T")

_making: Final = threading.Lock()
"""msgspec 0.22 ends the process (SIGSEGV) when two threads look into the same Struct for the first time at once."""
_decoders: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {}


def decoder_of(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """The decoder of values of a type, made once. All decoders that are not made with their module come from here."""
    found = _decoders.get(kind)
    if found is None:
        with _making:
            found = _decoders.get(kind)  # of two that ask at once the second one waited here
            if found is None:
                found = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return found


def from_json(kind: type[T], data: bytes) -> T:
    """The value of a type in a JSON text, for what is read once. Raises what msgspec raises."""
    with _making:
        decoder = msgspec.json.Decoder(kind)
    return decoder.decode(data)


def converted(value: Any, kind: type[T]) -> T:
    """A value made of plain ones, as one of that type. Raises msgspec.ValidationError, RecursionError."""
    decoder_of(kind)  # looks into it, under the lock
    return msgspec.convert(value, kind)


def decoded(decoder: msgspec.msgpack.Decoder[T], data: Part, what: str) -> T:
    """The value in `data`. Raises ProtocolError, which says `what` it was to be, for all that it can be instead: other
    bytes, other types, text that is no UTF-8, values nested a thousand deep."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, MemoryError) as exc:
        raise ProtocolError(f"bad {what}: {exc}"[:600]) from exc
