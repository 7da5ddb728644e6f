"""Interest of the subscriptions at a delegate in registrations that bridges relay to it: so that whoever is on the
other side need not send what nobody wants."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec

from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.quality import Importance

TYPES_MOST: Final = 1_000
"""Types that are told one by one; of more everything is wanted."""
PREDICATES_MOST: Final = 64
"""Predicates on objects of a type; if there are more, all of its objects are wanted."""
PREDICATES_TEXT: Final = 16_384
"""Characters of all predicates on objects of a type, with their namespaces."""
WANTED_TEXT: Final = 1 << 20
"""Characters of all predicates."""


Demand = Literal["reliable", "persist"]
"""Demand of a subscription on what nodes of a network send: that what is lost on the way is sent again, or that it is
archived by others as well, although the publisher did not ask for it."""


class WantedPredicate(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A predicate on metadata that some subscription has."""

    text: str
    namespaces: tuple[tuple[str, str], ...] = ()
    language: str = "xpath"


class InterestMembers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Subscriptions that want objects of a type."""

    behind: Annotated[tuple[int, ...], msgspec.Meta(max_length=PREDICATES_MOST)] = ()
    """Their numbers, by predicate; of all together where all objects are wanted."""
    importance: Importance | None = None
    """The highest that one of them wishes."""
    has_waited: bool = False
    """Whether one stood before what it matches was relayed: it is to have the first objects."""


class WantedType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A type of which somebody wants objects: those for which one of the predicates is true."""

    type: TypeName
    predicates: Annotated[tuple[WantedPredicate, ...], msgspec.Meta(max_length=PREDICATES_MOST)] = ()
    """() for all of its objects."""
    demands: Annotated[tuple[Demand, ...], msgspec.Meta(max_length=len(get_args(Demand)))] = ()
    """Demands of some of the subscriptions."""
    members: InterestMembers | None = None
    """Those who want it, where that was asked."""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Interest of subscriptions. What is told may be more than what is wanted, and is never less."""

    revision: int = 0
    """Number that grows, over restarts as well, when it is another interest."""
    types: Annotated[tuple[WantedType, ...], msgspec.Meta(max_length=TYPES_MOST)] | None = None
    """By name and version; types that are not among them nobody wants. None: everything is wanted."""


EVERYTHING: Final = Wanted()
