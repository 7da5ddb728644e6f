"""States of a publisher's connection to a delegate, and of a registration there, as tables."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from jbi_pubsub.core.state import StateTable


class ConnectionState(Enum):
    """States of a publisher's connection to a delegate."""

    OPENING = auto()
    ATTACHED = auto()
    """The delegate has our registrations; no line to send on is open yet."""
    SENDING = auto()
    AWAY = auto()
    """The delegate has our registrations for all we know, and no line to it has been open since it did not answer."""
    FORGOTTEN = auto()
    """The delegate has forgotten us: one is to be found, and everything to be registered there."""
    SOUGHT = auto()
    """The same, and none answers."""
    LEFT = auto()


class ConnectionEvent(Enum):
    """Events in the life of a connection."""

    CONNECT = auto()
    """A delegate has taken our registrations."""
    LINE = auto()
    """A line to send on is open."""
    FAIL = auto()
    """No delegate answers, or none is found."""
    FORGET = auto()
    """Our lease has ended, or another delegate stands where ours was."""
    LEAVE = auto()


_C, _E = ConnectionState, ConnectionEvent

CONNECTION: Final = StateTable(
    "publisher's connection to a delegate",
    _C.OPENING,
    {
        (_C.OPENING, _E.CONNECT): _C.ATTACHED,
        (_C.ATTACHED, _E.LINE): _C.SENDING,
        (_C.ATTACHED, _E.FAIL): _C.AWAY,
        (_C.ATTACHED, _E.FORGET): _C.FORGOTTEN,
        (_C.SENDING, _E.LINE): _C.SENDING,
        (_C.SENDING, _E.FAIL): _C.AWAY,
        (_C.SENDING, _E.FORGET): _C.FORGOTTEN,
        (_C.AWAY, _E.LINE): _C.SENDING,
        (_C.AWAY, _E.FAIL): _C.AWAY,
        (_C.AWAY, _E.FORGET): _C.SOUGHT,
        (_C.FORGOTTEN, _E.CONNECT): _C.ATTACHED,
        (_C.FORGOTTEN, _E.LINE): _C.FORGOTTEN,  # the lease ended as it was opened
        (_C.FORGOTTEN, _E.FAIL): _C.SOUGHT,
        (_C.FORGOTTEN, _E.FORGET): _C.FORGOTTEN,
        (_C.SOUGHT, _E.CONNECT): _C.AWAY,
        (_C.SOUGHT, _E.LINE): _C.FORGOTTEN,
        (_C.SOUGHT, _E.FAIL): _C.SOUGHT,
        (_C.SOUGHT, _E.FORGET): _C.SOUGHT,
        **{(state, _E.LEAVE): _C.LEFT for state in _C},
        **{(_C.LEFT, event): _C.LEFT for event in _E},  # something was under way when it left
    },
)

UNATTACHED: Final = frozenset({_C.FORGOTTEN, _C.SOUGHT})
SILENT: Final = frozenset({_C.AWAY, _C.SOUGHT})
"""States in which no delegate answers."""


class RegistrationState(Enum):
    """States of a registration at a delegate."""

    ASKED = auto()
    """The delegate is being asked for the first time."""
    OPEN = auto()
    """Its objects go there, or wait for a delegate."""
    REFUSED = auto()
    """A delegate that we have come back to refuses it: it is asked for again, and who publishes is told."""
    ENDING = auto()
    ABANDONED = auto()
    """Over for us; the delegate may have it, and as long as we are connected nothing else would end it."""
    ENDED = auto()


class RegistrationEvent(Enum):
    """Events in the life of a registration at a delegate."""

    ASK = auto()
    GRANT = auto()
    """The delegate takes it, or may take it with the next try."""
    REFUSE = auto()
    UNWANT = auto()
    KEEP = auto()
    """The delegate has not ended it: it stands as before."""
    ABANDON = auto()
    """Over for us, and the delegate may have it."""
    END = auto()


_R, _V = RegistrationState, RegistrationEvent

REMOTE_REGISTRATION: Final = StateTable(
    "registration at a delegate",
    _R.ASKED,
    {
        (_R.ASKED, _V.ASK): _R.ASKED,
        (_R.ASKED, _V.GRANT): _R.OPEN,
        (_R.ASKED, _V.ABANDON): _R.ABANDONED,
        (_R.ASKED, _V.END): _R.ENDED,
        (_R.OPEN, _V.ASK): _R.OPEN,
        (_R.OPEN, _V.GRANT): _R.OPEN,
        (_R.OPEN, _V.REFUSE): _R.REFUSED,
        (_R.OPEN, _V.UNWANT): _R.ENDING,
        (_R.OPEN, _V.ABANDON): _R.ABANDONED,
        (_R.REFUSED, _V.ASK): _R.REFUSED,
        (_R.REFUSED, _V.GRANT): _R.OPEN,
        (_R.REFUSED, _V.REFUSE): _R.REFUSED,
        (_R.REFUSED, _V.UNWANT): _R.ENDING,
        (_R.REFUSED, _V.ABANDON): _R.ABANDONED,
        (_R.ENDING, _V.KEEP): _R.OPEN,
        (_R.ENDING, _V.REFUSE): _R.REFUSED,
        (_R.ENDING, _V.ABANDON): _R.ABANDONED,
        (_R.ENDING, _V.END): _R.ENDED,
        (_R.ABANDONED, _V.ASK): _R.ASKED,  # under the same id
        (_R.ABANDONED, _V.END): _R.ENDED,
    },
)
