"""Status of a bridge to another platform, for who may look at one of its sides."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from jbi_pubsub.core.status import Count, MaybeText, Status


class MemberStatus(Status, frozen=True):
    """A predicate that subscriptions at a direction's target have on a type."""

    predicate: str = ""
    """"" for all of its objects."""
    behind: Count = 0
    """Subscriptions that have it; 0: they have just left."""


class BroughtStatus(Status, frozen=True):
    """Members of a type, for all of which one subscription stands at the source."""

    members: list[MemberStatus] = []
    """Those with most behind them; their texts may be cut."""
    others: Count = 0
    """Members that are not told."""
    importance: Count = 0
    """The highest that one of them wishes; 0: none wishes one."""
    crossed: Count = 0
    """Objects that have come."""
    saved: Count = 0
    """Copies of these that did not cross, as one was enough; of several members about."""


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
    wanted: dict[str, BroughtStatus] | UnsetType = UNSET
    """By type, where what is wanted is brought alone: those with most members behind them."""
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
