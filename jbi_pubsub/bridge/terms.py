"""Terms of a bridge's direction."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from .listed import BridgedRegistration, Passing


class DirectionTerms(msgspec.Struct, frozen=True):
    """Terms of a direction beside its transformation."""

    types: tuple[str, ...] = ()
    """Names of the types that are subscribed to; () for all."""
    poll: float = 2.0
    validate: bool = True
    """Whether the other side checks metadata by their schema once more."""
    wanted: bool = False
    """Whether what the other side wants is brought alone (see wanted.py)."""
    passes: tuple[Passing, ...] = ()
    """Wishes of publishers that hold on the other side, too."""

    def passed(self, published: BridgedRegistration, first: int | None) -> BridgedRegistration:
        """A registration as it is for the other side, which has all its objects from number `first` on."""
        is_sparse = first is not None and (published.is_sparse or self.wanted)
        passes = tuple(dict.fromkeys((*published.passes, *self.passes)))
        return replace(published, first=first, is_sparse=is_sparse, passes=passes)
