"""Base of the sections of a configuration, and the kinds of values in them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

YEAR: Final = 31_536_000
"""Seconds; the longest that a setting may say. Far above any use, and below what a thread can wait (2^63 ns)."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""A TCP port; 0 takes a free one where we listen."""
Term = Annotated[float, msgspec.Meta(gt=0, le=YEAR)]
"""Seconds that something lasts or recurs."""
Wait = Annotated[float, msgspec.Meta(ge=0, le=YEAR)]
"""Seconds to wait at most; 0 does not."""
Limit = Annotated[int, msgspec.Meta(ge=1)]
"""A bound that leaves room for one."""
Binding = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*=\S+$", max_length=1024)]
"""prefix=URI of a namespace."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the sections. Bounds are checked where values come from people (`load`), not where code makes them."""
