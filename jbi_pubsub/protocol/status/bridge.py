"""Status of a bridge to another platform, for who may look at one of its sides."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from jbi_pubsub.core.status import Count, MaybeText, Status


class DirectionStatus(Status, frozen=True, rename={"source": "from", "target": "to"}):
    """A direction: what is relayed, and what is not."""

    source: str = ""
    target: str = ""
    listening: bool = False
    """Whether it hears of what is published at its source."""
    registrations: Count = 0
    """Those that stand at its target."""
    relayed: Count = 0
    filtered: Count = 0
    lost: Count = 0
    members: Count = 0
    """Subscriptions at its target that want something, where that is brought alone."""
    saved: Count = 0
    """Copies of objects that did not cross, as one was enough; about."""
    waiting: Count = 0
    """Registrations that do not stand yet."""
    troubles: Count = 0


class RemoteStatus(Status, frozen=True):
    """A bridge, or another who answers queries from elsewhere; of its sides no more than whether they are there."""

    kind: str = ""
    name: str = ""
    sides: dict[str, bool] | UnsetType = UNSET
    directions: list[DirectionStatus] | UnsetType = UNSET
    trouble: MaybeText = UNSET
