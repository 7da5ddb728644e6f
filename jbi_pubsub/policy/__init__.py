"""Rules and policies of policy.toml: their reader, the decisions, the audit log.

It knows core and lookup. Rules are looked at when a contract opens, never per object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .policy import Policy as Policy
    from .policyset import PolicySet as PolicySet

__all__ = ["Policy", "PolicySet"]


def __getattr__(name: str) -> object:
    """Loaded when they are first used: who asks for access rules alone does not need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import policyset

    return getattr(policyset, name)
