"""Volunteers that keep what is published elsewhere, and the node that asks for them (Gemini, section 5.6.3.1). Pure.

A publisher that wants its objects kept is connected to one node, the coordinator. That asks all others in one durable
message, which says how many are still needed and who was accepted; a newer one replaces it. So whoever comes late, or
was away, knows as much as all others from the last one alone.

Rules:
- A volunteer offers after a random time, if the last word is then that more are needed; so few offer of many.
- The first that offer are accepted. Who has kept a registration before, and is asked anew, offers early.
- Who is accepted and then is gone is replaced; when it is back it hears that, and stops, or offers again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import msgspec

from jbi_pubsub.core.state import StateTable

from .bodies import VERSION, AssistanceBody, OfferBody

AGAIN: Final = 5.0
"""So many times the longest delay of an offer until it is made again that nobody has answered."""
EARLY: Final = 0.1
"""Part of that delay within which those offer who have kept the registration before."""
CANDIDACIES_MOST: Final = 100_000
"""Registrations that a node may be asked to keep."""


class VolunteerState(Enum):
    """States of a node towards a registration of another one that is to be kept."""

    SILENT = auto()
    """Enough others keep it."""
    WAITING = auto()
    """The node is going to offer, when its time has come."""
    OFFERED = auto()
    """The node has offered, and nothing was said since."""
    KEEPING = auto()
    """The node was accepted."""
    OVER = auto()
    """The registration has ended, and all of it has come."""


class VolunteerEvent(Enum):
    """Events in the life of such a node."""

    NEEDED = auto()
    """More are needed, and it was not accepted."""
    ENOUGH = auto()
    """None are needed, and it was not accepted."""
    DUE = auto()
    """The time of its offer has come."""
    ACCEPTED = auto()
    """The node stands among those that were accepted."""
    ENDED = auto()
    """Nothing more comes of the registration."""


_S, _E = VolunteerState, VolunteerEvent
VOLUNTEER: Final = StateTable(
    "volunteer for a registration",
    _S.SILENT,
    {
        (_S.SILENT, _E.NEEDED): _S.WAITING,
        (_S.SILENT, _E.ENOUGH): _S.SILENT,
        (_S.SILENT, _E.ACCEPTED): _S.KEEPING,
        (_S.WAITING, _E.NEEDED): _S.WAITING,
        (_S.WAITING, _E.ENOUGH): _S.SILENT,
        (_S.WAITING, _E.DUE): _S.OFFERED,
        (_S.WAITING, _E.ACCEPTED): _S.KEEPING,
        (_S.OFFERED, _E.NEEDED): _S.OFFERED,
        (_S.OFFERED, _E.ENOUGH): _S.SILENT,
        (_S.OFFERED, _E.DUE): _S.OFFERED,
        (_S.OFFERED, _E.ACCEPTED): _S.KEEPING,
        (_S.KEEPING, _E.NEEDED): _S.WAITING,  # it was believed to have gone, and others as well
        (_S.KEEPING, _E.ENOUGH): _S.SILENT,
        (_S.KEEPING, _E.ACCEPTED): _S.KEEPING,
        (_S.SILENT, _E.ENDED): _S.OVER,
        (_S.WAITING, _E.ENDED): _S.OVER,
        (_S.OFFERED, _E.ENDED): _S.OVER,
        (_S.KEEPING, _E.ENDED): _S.OVER,
    },
)


@dataclass(slots=True)
class _Election:
    """A registration of ours, and who keeps it: whether that node was seen there, and since when it is accepted."""

    accepted: dict[bytes, tuple[bool, float]] = field(default_factory=dict)


class PersistenceCoordinator:
    """Elections for a node's own registrations. One thread at a time."""

    def __init__(self, volunteers: int, patience: float, number: int = 0) -> None:
        """`volunteers`: that are wanted for each; `patience`: seconds for one that was accepted to be seen; `number`:
        below those of all that is said."""
        self._volunteers, self._patience = volunteers, patience
        self._elections: dict[str, _Election] = {}
        self._number = number
        """Number of what was said last."""

    def ask(self, uid: str) -> AssistanceBody:
        """A registration is to be kept elsewhere: what is to be said. Again: the same once more."""
        return self._word(uid, self._elections.setdefault(uid, _Election()), is_request=True)

    def offered(self, origin: bytes, uid: str, now: float) -> AssistanceBody | None:
        """A node has offered: what is to be said; None: nothing, it is ignored."""
        election = self._elections.get(uid)
        if election is None or origin in election.accepted or len(election.accepted) >= self._volunteers:
            return None
        election.accepted[origin] = (False, now)
        return self._word(uid, election, is_request=False)

    def look(self, present: Collection[bytes], now: float) -> Iterator[AssistanceBody]:
        """These nodes are there, and no others: what is to be said of registrations that have lost somebody."""
        for uid, election in self._elections.items():
            before = election.accepted
            election.accepted = {
                origin: (was_seen or origin in present, since)
                for origin, (was_seen, since) in before.items()
                if origin in present or (not was_seen and now - since < self._patience)
            }
            if len(election.accepted) < len(before):
                yield self._word(uid, election, is_request=True)

    def end(self, uid: str) -> AssistanceBody | None:
        """A registration has ended: what is to be said, so that nobody offers any more."""
        election = self._elections.pop(uid, None)
        if election is None:
            return None
        return msgspec.structs.replace(self._word(uid, election, is_request=False), needed=0)

    def next_number(self) -> int:
        """A number behind all that were said."""
        self._number += 1
        return self._number

    def uids(self) -> frozenset[str]:
        """Registrations that are to be kept elsewhere."""
        return frozenset(self._elections)

    def needed(self, uid: str) -> int:
        """Number of volunteers that it still wants."""
        return self._volunteers - len(self.volunteers(uid))

    def volunteers(self, uid: str) -> tuple[bytes, ...]:
        """Ids of the nodes that keep it."""
        election = self._elections.get(uid)
        return tuple(election.accepted) if election is not None else ()

    def _word(self, uid: str, election: _Election, *, is_request: bool) -> AssistanceBody:
        needed = self._volunteers - len(election.accepted)
        return AssistanceBody(VERSION, uid, self.next_number(), needed, tuple(election.accepted), is_request)


@dataclass(slots=True)
class _Candidacy:
    """A registration of another node that is to be kept."""

    coordinator: bytes
    epoch: int
    asked: float
    """When its coordinator spoke last."""
    number: int = 0
    state: VolunteerState = VOLUNTEER.initial


class PersistenceVolunteer:
    """A node's part in the elections of others. One thread at a time."""

    def __init__(self, me: bytes, offer_seconds: float, uniform: Callable[[float, float], float]) -> None:
        """`offer_seconds`: the longest delay of an offer."""
        self._me, self._seconds, self._uniform = me, offer_seconds, uniform
        self._candidacies: dict[str, _Candidacy] = {}
        self._due: dict[str, float] = {}
        """When we offer, of those where we are going to."""

    def kept(self) -> list[str]:
        """Registrations for which it was accepted."""
        return [uid for uid, each in list(self._candidacies.items()) if each.state is VolunteerState.KEEPING]

    def state(self, uid: str) -> tuple[bytes, VolunteerState]:
        """The coordinator of a registration (b"": nobody has asked), and its state towards it."""
        candidacy = self._candidacies.get(uid)
        return (candidacy.coordinator, candidacy.state) if candidacy is not None else (b"", VolunteerState.OVER)

    def silent_since(self, then: float) -> list[str]:
        """Registrations of which their coordinators have said nothing since then."""
        return [uid for uid, each in list(self._candidacies.items()) if each.asked <= then]

    def told(self, coordinator: bytes, epoch: int, word: AssistanceBody, now: float) -> bool:
        """A coordinator has spoken: whether we keep its registration from now on, and did not before."""
        candidacy = self._candidacies.get(word.uid)
        if candidacy is None:
            if len(self._candidacies) >= CANDIDACIES_MOST:
                return False
            candidacy = self._candidacies[word.uid] = _Candidacy(coordinator, epoch, now)
        if coordinator != candidacy.coordinator or (epoch, word.number) <= (candidacy.epoch, candidacy.number):
            return False
        candidacy.epoch, candidacy.number, candidacy.asked = epoch, word.number, now
        event = VolunteerEvent.NEEDED if word.needed > 0 else VolunteerEvent.ENOUGH
        before, after = self._go(word.uid, VolunteerEvent.ACCEPTED if self._me in word.accepted else event)
        if after is VolunteerState.WAITING and before is not after:
            part = EARLY if before is VolunteerState.KEEPING else 1.0
            self._due[word.uid] = now + self._uniform(0, part * self._seconds)
        return after is VolunteerState.KEEPING and before is not after

    def offers(self, now: float) -> Iterator[tuple[bytes, OfferBody]]:
        """Offers whose time has come, with the coordinators that they are for."""
        for uid in [uid for uid, due in self._due.items() if due <= now]:
            self._go(uid, VolunteerEvent.DUE)
            self._due[uid] = now + AGAIN * self._seconds + self._uniform(0, self._seconds)
            yield self._candidacies[uid].coordinator, OfferBody(VERSION, uid, int(self._uniform(0, 1 << 52)))

    def due(self) -> float:
        """When the next offer is to be made."""
        return min(self._due.values(), default=math.inf)

    def over(self, uid: str) -> None:
        """A registration has ended, and all of it has come, or its node was started anew without it."""
        if uid in self._candidacies:
            self._go(uid, VolunteerEvent.ENDED)
            del self._candidacies[uid]

    def _go(self, uid: str, event: VolunteerEvent) -> tuple[VolunteerState, VolunteerState]:
        """States before and after."""
        candidacy = self._candidacies[uid]
        before = candidacy.state
        candidacy.state = VOLUNTEER.after(before, event)
        if candidacy.state not in (VolunteerState.WAITING, VolunteerState.OFFERED):
            self._due.pop(uid, None)
        return before, candidacy.state
