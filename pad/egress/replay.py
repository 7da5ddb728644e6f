"""The past of a subscription, or a query, that comes from an archive into its queue.

A *feed* brings it as the queue has room. What is kept later comes live, and waits behind, until the feed has brought
all up to there.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.pad.model.durable import Durable


class Feed(Protocol):
    """Source that fills a queue from an archive, as it has room."""

    def wake(self) -> None:
        """There may be room, or it is over. Never waits: the session's lock may be held."""
        ...


class Replay:
    """State of a queue in catch-up with an archive: what is kept comes from its feed up to `target`, what is kept later
    comes live and waits *behind*. When that is too much, it is given up: *overrun*, the feed brings that as well, up to
    another target. What is not kept has nothing to do with it."""

    __slots__ = (
        "again_from", "behind", "durable", "is_live", "is_overrun", "not_kept", "past", "size", "target", "went",
    )  # fmt: skip

    def __init__(self, durable: Durable | None = None) -> None:
        """`durable`: told what goes out, and what was acknowledged; None: nobody is."""
        self.durable = durable
        self.went: deque[int] = deque()
        """Positions of what a durable one's application has not taken yet, as they went; 0: it is not kept."""
        self.not_kept = 0
        """Objects that went, are not kept, and were not acknowledged one by one."""
        self.again_from = -1
        """Where the feed is to go on for one that fell back."""
        self.target = 0
        self.past = math.inf
        """Positions up to there came before it had caught up."""
        self.behind: list[Parcel] = []
        self.size = 0
        """Bytes of those."""
        self.is_overrun = True
        self.is_live = False
        """The feed has brought all: what comes later goes to the queue."""

    def give_up(self) -> int:
        """Drop what is behind; its bytes."""
        size, self.size = self.size, 0
        self.behind.clear()
        self.is_overrun = True
        return size
