"""Members of a type: the predicates that subscriptions of the other side have on it, and what they come to together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate
from jbi_pubsub.core.xpath.covering import Aggregate
from jbi_pubsub.core.xpath.narrowing import Condition, joined
from jbi_pubsub.protocol.status.bridge import BroughtStatus, MemberStatus
from jbi_pubsub.protocol.wanted import WantedPredicate, WantedType

from .listening import Profile

ALL: Final = WantedPredicate("")
"""The member that stands for all who want all of a type's objects."""
SAMPLED: Final = 10
"""Objects of which one is looked at for whom it is: as much work as for all else that is done to one."""

TYPES_TOLD: Final = 25
"""Types of which others are told."""
MEMBERS_TOLD: Final = 16
"""Members of each of them."""
TEXT_TOLD: Final = 200
"""Characters of a member's predicate."""


@dataclass(slots=True)
class TypeMembers:
    """Interest in the types of one name."""

    members: dict[WantedPredicate, float] = field(default_factory=dict)
    """Until when each is one (clock): as long as it is told, for ever."""
    behind: Mapping[WantedPredicate, int] = field(default_factory=dict)
    """Subscriptions behind those that are told."""
    importance: int = 0
    has_waited: bool = False
    profile: Profile | None = None
    """The one that it is subscribed with; None: it is not."""
    crossed: int = 0
    """Objects that have come."""
    saved: int = 0
    """Copies of these that did not, as each subscription would have had its own; of several members about."""
    index: PredicateIndex[WantedPredicate] | None = None
    """Their predicates, as long as they are these."""

    aggregate: Aggregate[WantedPredicate] = field(default_factory=Aggregate)
    """The members, and those that no other one covers."""
    asked: tuple[frozenset[WantedPredicate], Condition | None] | None = None
    """Members, and the predicate of all of them."""

    def count(self, obj: InfoObject) -> None:
        """An object has come. On the thread of the subscription."""
        self.crossed += 1
        behind, index = self.behind, self.index
        if len(behind) == 1:
            self.saved += max(0, next(iter(behind.values())) - 1)
        elif index is not None and not self.crossed % SAMPLED:
            with suppress(JbiError):
                matched = index.match(parse_metadata(obj.metadata), len(obj.metadata))
                self.saved += SAMPLED * max(0, sum(behind.get(each, 0) for each in matched) - 1)

    def goal(self) -> Profile | None:
        """The profile that it should be subscribed with."""
        if not self.members:
            return None
        importance = self.importance or None
        if self.asked is None or self.asked[0] != self.members.keys():
            self.asked = frozenset(self.members), self._where()
        where = self.asked[1]
        return Profile(importance=importance) if where is None else Profile(where, importance)

    def _where(self) -> Condition | None:
        """Predicate of all members; None: all that there is, as one wants that, or they can't be asked together."""
        if ALL in self.members or any(each.language != ALL.language for each in self.members):
            return None
        try:
            self._gather()
            where = joined(sorted((each.text, each.namespaces) for each in self.aggregate.widest), "or")
            compile_predicate(where[0], namespaces=dict(where[1]))
        except JbiError:  # all together are too much
            return None
        return where

    def _gather(self) -> None:
        """Have the members, and no others, in the aggregate: what one of them covers is brought for that one."""
        for gone in self.aggregate.keys - self.members.keys():
            self.aggregate.remove(gone)
        for one in sorted(self.members.keys() - self.aggregate.keys):
            self.aggregate.add(one, compile_predicate(one.text, namespaces=dict(one.namespaces)))

    def take(self, told: Collection[WantedType], now: float, linger: float) -> None:
        """Those that are told are members; those that were stay so for `linger` seconds."""
        behind: Counter[WantedPredicate] = Counter()
        for each in told:
            predicates = each.predicates or (ALL,)
            counts = dict(zip(predicates, each.members.behind if each.members is not None else (), strict=False))
            behind.update({one: counts.get(one, 1) for one in predicates})
        if behind.keys() != self.behind.keys():
            self.index = _index_of(behind)
        self.behind = behind
        who = [each.members for each in told if each.members is not None]
        self.importance = max((each.importance or 0 for each in who), default=self.importance)
        self.has_waited = any(each.has_waited for each in who)
        left = {each: min(end, now + linger) for each, end in self.members.items() if each not in self.behind}
        self.members = {each: end for each, end in left.items() if end > now} | dict.fromkeys(self.behind, math.inf)

    def said(self) -> dict[str, Any]:
        """Plain data."""
        profile = self.profile
        return {
            "members": [{"predicate": each.text, "behind": self.behind.get(each, 0)} for each in self.members],
            "importance": self.importance,
            "subscribed": None if profile is None else profile.where[0],
            "crossed": self.crossed,
            "saved": self.saved,
        }


def told(direction: Mapping[str, Any]) -> dict[str, dict[str, BroughtStatus]]:
    """Part of a direction's status that is bounded where others are told of it, if there is one: members by type, those
    first behind which most stand."""

    def behind(item: tuple[str, Mapping[str, Any]]) -> tuple[int, str]:
        return -sum(int(each["behind"]) for each in item[1]["members"]), item[0]

    made: dict[str, BroughtStatus] = {}
    for name, each in sorted(direction.get("wanted", {}).items(), key=behind)[:TYPES_TOLD]:
        first = sorted(each["members"], key=lambda one: -int(one["behind"]))[:MEMBERS_TOLD]
        members = [MemberStatus(predicate=one["predicate"][:TEXT_TOLD], behind=one["behind"]) for one in first]
        counts = {key: each[key] for key in ("importance", "crossed", "saved")}
        made[name] = BroughtStatus(members=members, others=len(each["members"]) - len(members), **counts)
    return {"wanted": made} if "wanted" in direction else {}


def _index_of(members: Collection[WantedPredicate]) -> PredicateIndex[WantedPredicate] | None:
    """None: there are not several, or of some it can't be said here what they are true for."""
    index: PredicateIndex[WantedPredicate] = PredicateIndex()
    try:
        for each in members:
            spaces, language = dict(each.namespaces), each.language
            compiled = compile_predicate(each.text, namespaces=spaces, language=language) if each.text else None
            index.add(each, compiled)
    except JbiError:
        return None
    return index if len(members) > 1 else None
