"""Letters of the mail queue: their states as a table, and the account of what becomes of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.state import StateTable
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.model.subscription import Subscription

LONGEST_PAUSE: Final = 60.0
"""Seconds; pauses double up to here."""


class LetterState(Enum):
    """States of a letter."""

    NEW = auto()
    """To be written to disk."""
    WRITING = auto()
    """A transaction that writes it is under way."""
    WAITING = auto()
    """Waits for its turn: on disk, or need not be."""
    TRYING = auto()
    """Under way to the mail server."""
    GONE = auto()
    """Mailed, lost or cancelled."""


class LetterEvent(Enum):
    """Events in the life of a letter."""

    ADMIT = auto()
    """May go out: need not survive, or is on disk from a time before."""
    WRITE = auto()
    KEEP = auto()
    """On disk now."""
    TRY = auto()
    PUT_OFF = auto()
    """Is to be tried again."""
    FINISH = auto()
    """The mail server has answered for all of its recipients."""
    DROP = auto()
    """Lost or cancelled."""


_S, _E = LetterState, LetterEvent

MAIL_LETTER: Final = StateTable(
    "letter of the mail queue",
    _S.NEW,
    {
        (_S.NEW, _E.ADMIT): _S.WAITING,
        (_S.NEW, _E.WRITE): _S.WRITING,
        (_S.WRITING, _E.KEEP): _S.WAITING,
        (_S.WAITING, _E.TRY): _S.TRYING,
        (_S.TRYING, _E.PUT_OFF): _S.WAITING,
        (_S.TRYING, _E.FINISH): _S.GONE,
        (_S.NEW, _E.DROP): _S.GONE,
        (_S.WRITING, _E.DROP): _S.GONE,
        (_S.WAITING, _E.DROP): _S.GONE,
        (_S.TRYING, _E.DROP): _S.GONE,
    },
)


class Loss(NamedTuple):
    """So many objects times recipients were lost for a subscription; `why` is for the log, "" for none."""

    subscription: Subscription
    cause: Cause
    amount: int
    why: str = ""


class Ledger(msgspec.Struct):
    """The account of a subscription's mail so far; `suspended` maps recipients to the answer that was the last drop.

    `offered` counts objects, `mailed` and `lost` objects times recipients.
    """

    offered: int = 0
    mailed: int = 0
    lost: dict[str, int] = {}
    suspended: dict[str, str] = {}


@dataclass(eq=False, slots=True)
class Letter:
    """One object for one subscription. `recipients` are those who have not got it; `queued` is a time of our clock:
    when it was published, where that is known."""

    number: int
    uid: str
    content: Content
    recipients: tuple[str, ...]
    queued: float
    tries: int = 0
    deadline: float | None = None
    """Seconds from `queued` on, of a contract that decides by the object."""
    state: LetterState = _S.NEW
    """Changed by `happen` alone."""

    @property
    def size(self) -> int:
        """Bytes of its content."""
        return len(self.content.data)

    @property
    def is_unwritten(self) -> bool:
        """Whether it waits for the disk."""
        return self.state in (_S.NEW, _S.WRITING)

    def happen(self, event: LetterEvent) -> None:
        """Change its state by the table."""
        self.state = MAIL_LETTER.after(self.state, event)


def pause_after(tries: int, settings: MailSection) -> float:
    """Seconds before the next try after so many without success."""
    return min(settings.retry_seconds * 2.0 ** max(0, tries - 1), LONGEST_PAUSE)
