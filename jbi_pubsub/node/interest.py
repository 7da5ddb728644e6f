"""Interest of this node's subscribers in what other nodes publish. One thread at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.protocol.wanted import Wanted

from .bodies import LeftOutBody, SequenceBody


class OwnInterest:
    """See the module. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._untold: Wanted | None = None
        self._since: Mapping[TypeName, float] | None = {}
        """Types that are wanted, and since when; None: all are."""

    def note(self, wanted: Wanted, now: float) -> None:
        """Note what they want now."""
        before, types = self._since or {}, wanted.types
        self._untold = wanted
        self._since = None if types is None else {each.type: before.get(each.type, now) for each in types}

    def take(self) -> Wanted | None:
        """The interest that other nodes have not been told yet."""
        untold, self._untold = self._untold, None
        return untold

    def lacking(self, left: LeftOutBody, body: SequenceBody | None, now: float) -> LeftOutBody:
        """The same objects of a registration, 0 of those that were left out before they wanted the type."""
        if body is None or self._since is None or self._since.get(body.type, math.inf) <= now - left.age / 1000:
            return left
        return msgspec.structs.replace(left, count=0)
