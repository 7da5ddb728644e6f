"""The publishers' adapters: through a delegate (PAL), or peer to peer (PA)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .light import DelegateUid, PublisherAdapterLight
from .publication import RegistrationUid

if TYPE_CHECKING:
    from .peer import PublisherAdapter

__all__ = ["DelegateUid", "PublisherAdapter", "PublisherAdapterLight", "RegistrationUid"]


def __getattr__(name: str) -> object:
    """Loaded when it is first used: it has a delegate inside, which who publishes through one does not need."""
    if name != "PublisherAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .peer import PublisherAdapter

    return PublisherAdapter
