"""The past of a subscription, or a query, that comes into its queue before what comes live.

A late joiner is owed what its delegate has in memory: that is looked through while its queue is held. From an archive a
*feed* brings it as the queue has room, in rounds. What is kept later comes live, and waits behind, until the feed has
brought all up to there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.state import StateTable
from jbi_pubsub.pad.model.durable import Durable


class CatchUpState(Enum):
    """States of a queue that catches up with the past."""

    HELD = auto()
    """The delegate's memory is looked through for it: what comes live waits, and nothing goes out."""
    BEHIND = auto()
    """An archive is to bring all that it keeps: nothing of that comes live."""
    FILLING = auto()
    """The archive brings what it keeps up to a target, in a round; what is kept later comes live, and waits behind."""
    OVERRUN = auto()
    """The round goes on, but too much waited behind: that was dropped, and comes with another one."""
    SETTLING = auto()
    """The round is over; what is behind waits for room."""
    LIVE = auto()
    """All comes live."""


class CatchUpEvent(Enum):
    """Events in the life of such a queue."""

    CAUGHT_UP = auto()
    """All that was in memory is in the queue, and there is nothing else."""
    RELEASED = auto()
    """The same, of one that an archive fills as well."""
    ARMED = auto()
    """The archive has said where its positions stand."""
    OVERRAN = auto()
    """Too much waits behind."""
    BROUGHT = auto()
    """All up to the target is in the queue."""
    JOINED = auto()
    """All that was behind is in the queue, too."""
    FELL_BACK = auto()
    """Its subscriber is too slow for what waits here, or wants to have something again."""


CATCH_UP: Final = StateTable(
    "queue that catches up",
    CatchUpState.HELD,
    {
        (CatchUpState.HELD, CatchUpEvent.CAUGHT_UP): CatchUpState.LIVE,
        (CatchUpState.HELD, CatchUpEvent.RELEASED): CatchUpState.BEHIND,
        (CatchUpState.HELD, CatchUpEvent.FELL_BACK): CatchUpState.HELD,
        (CatchUpState.BEHIND, CatchUpEvent.ARMED): CatchUpState.FILLING,
        (CatchUpState.BEHIND, CatchUpEvent.FELL_BACK): CatchUpState.BEHIND,
        (CatchUpState.FILLING, CatchUpEvent.OVERRAN): CatchUpState.OVERRUN,
        (CatchUpState.FILLING, CatchUpEvent.FELL_BACK): CatchUpState.OVERRUN,
        (CatchUpState.FILLING, CatchUpEvent.BROUGHT): CatchUpState.SETTLING,
        (CatchUpState.OVERRUN, CatchUpEvent.FELL_BACK): CatchUpState.OVERRUN,
        (CatchUpState.OVERRUN, CatchUpEvent.BROUGHT): CatchUpState.BEHIND,
        (CatchUpState.SETTLING, CatchUpEvent.OVERRAN): CatchUpState.BEHIND,
        (CatchUpState.SETTLING, CatchUpEvent.FELL_BACK): CatchUpState.BEHIND,
        (CatchUpState.SETTLING, CatchUpEvent.JOINED): CatchUpState.LIVE,
        (CatchUpState.LIVE, CatchUpEvent.FELL_BACK): CatchUpState.BEHIND,
    },
)
HELD: Final = CatchUpState.HELD
DROPPING: Final = frozenset((CatchUpState.HELD, CatchUpState.BEHIND, CatchUpState.OVERRUN))
"""States in which what is kept does not come live: another round brings it."""


WakeFeed = Callable[[], None]
"""Tells a feed that there may be room, or that it is over. Never waits: the session's lock may be held."""


class Replay:
    """Catching up of a queue with an archive. What is not kept has nothing to do with it."""

    __slots__ = ("again_from", "behind", "dropped", "durable", "not_kept", "past", "size", "target", "went")

    def __init__(self, durable: Durable | None) -> None:
        """`durable`: told what goes out, and what was acknowledged; None: nobody is."""
        self.durable = durable
        self.went: deque[int] = deque()
        """Positions of what a durable one's application has not taken yet, as they went; 0: it is not kept."""
        self.not_kept = 0
        """Objects that went, are not kept, and were not acknowledged one by one."""
        self.again_from = -1
        """Where the feed is to go on for one that fell back."""
        self.dropped: set[int] = set()
        """Positions of what it dropped for that."""
        self.target = 0
        self.past = math.inf
        """Positions up to there came before it had caught up."""
        self.behind: list[Parcel] = []
        self.size = 0
        """Bytes of those."""

    def give_up(self) -> int:
        """Drop what is behind; its bytes."""
        size, self.size = self.size, 0
        self.behind.clear()
        return size
