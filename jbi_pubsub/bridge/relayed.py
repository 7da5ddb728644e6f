"""A registration of the one side, as a bridge has it for the other: what waits, and what is still to be told there."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    DelegateNotFoundError,
    JbiError,
    LookupNotFoundError,
    OversizeError,
    SchemaError,
    WireError,
)
from jbi_pubsub.core.info_object import InfoObject, LargeObject

from .listed import BridgedRegistration

if TYPE_CHECKING:
    from .platform import BridgePlatform


REFUSED_MOST: Final = 30.0
"""Seconds until it is tried again to register what is in conflict or too much; the first time it is twice the poll."""
DENIED_SECONDS: Final = 15.0
"""Time that a registration may be denied until that counts as for good: longer than another bridge is waited for that
has what follows."""
PARKED_OBJECTS: Final = 10_000
"""Limit of one registration: as many as wait in a publisher for a side that is away. Of two bridges either may be the
one that has it when that side is back."""
OBJECT_BYTES: Final = 1_000
"""That an object takes beside its metadata and payload."""
PARKED_BYTES: Final = 64 << 20
"""Limit of all registrations of a direction."""
SHARE: Final = 7
"""So many times what is free one of them may have of it: 7/8 of all when it is alone."""
RELAYS_MOST: Final = 100_000
"""Registrations of one direction."""
_AWAY: Final = (WireError, LookupNotFoundError, DelegateNotFoundError)
"""Why a registration can't be made that will be as soon as the other side is there."""


@dataclass(slots=True)
class Untold:
    """Objects of a registration that do not come, as far as the other side has not been told. Of one that is sparse
    (see Origin) numbers say nothing: there losses are counted until it is seen whose they were."""

    is_sparse: bool = False
    is_awaited: bool = False
    """Whether the other side waits for who has what follows there."""
    up_to: int = 0
    """Number up to which the other side has all, or was told; 0: of none yet."""
    filtered: int = 0
    """Left out by us; `filtered_to`: number of the last one, or of the last of `missing`."""
    filtered_to: int = 0
    missing: int = 0
    """Were lost on their way to us, as their numbers say."""
    lost: int = 0
    """May have been lost at most."""
    is_unsure: bool = False
    """Whether they may have been another registration's, all or some."""

    def leave_out(self, count: int, up_to: int, *, lost: bool = False) -> None:
        """So many do not come, the last with that number: a rule leaves them out, or they were lost."""
        self.filtered, self.missing = self.filtered + count * (not lost), self.missing + count * lost
        self.filtered_to = up_to

    def loss_before(self, number: int) -> int | None:
        """Number of objects that were lost before that one, as far as there are numbers between (0: it is not known how
        many); None: none was. Of what is lost one hears before its place, so what is too much is told later."""
        if not self.up_to:
            self.lost, self.is_unsure = 0, False
        room = number - self.up_to - 1 - self.filtered - self.missing
        if room < 1 or not (self.lost or self.is_unsure):
            return None
        lost = 0 if self.is_unsure else min(self.lost, room)
        self.lost = self.lost - lost if lost else 0
        self.is_unsure = False
        return lost


@dataclass(eq=False, slots=True)
class Relayed:
    """A registration of the one side, as it is for the other. `lock` covers what is parked and whether it stands, and
    is held while an object goes; the rest is the direction's job's."""

    published: BridgedRegistration | None = None
    """None: its objects have come before it was seen."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    stands: bool = False
    """Whether it is registered on the other side."""
    parked: deque[tuple[float, InfoObject]] = field(default_factory=deque)
    bytes: int = 0
    """Size of the parked objects."""
    seen: float = 0.0
    """When it was published last, or an object came (clock)."""
    last: int = 0
    """Number of the last object that has come."""
    untold: Untold = field(default_factory=Untold)
    is_stale: bool = False
    """Whether what is registered there is not any more what it was."""
    why: str = ""
    """Why it is not registered there."""
    is_others: bool = False
    """Another bridge has it, which brings what is parked here."""
    is_former: bool = False
    """That one has our name: it may be a process before this one that was killed, until its lease ends."""
    is_refused: bool = False
    """Whether it can't be registered there, although the other side is not away."""
    backoff: Backoff | None = None
    """Pauses while it is refused so."""
    again: float = 0.0
    """When it is tried again (clock)."""

    @property
    def first(self) -> int:
        """From which number on all objects are here, or are still to come, but for those of what is sparse that nobody
        wants; 0: none has come."""
        if self.untold.is_sparse and self.untold.up_to:
            return self.untold.up_to + 1
        if self.parked:
            return self.parked[0][1].platform.sequence
        return self.last + 1 if self.last else 0

    @property
    def is_owed(self) -> bool:
        """Whether what is parked is to go as soon as it can: nobody else brings it, nor is it refused."""
        return not (self.is_refused or (self.is_others and not self.is_former))

    def refuse(self, exc: JbiError, now: float, poll: float) -> bool:
        """The other side does not register it, or not now; whether that has begun to wait for who has what follows. It
        is looked at each `poll` seconds."""
        is_denied = isinstance(exc, AccessDeniedError)
        waits = is_denied and (not self.parked or now - self.parked[0][0] < DENIED_SECONDS)
        self.why, self.is_refused = exc.message, not (waits or isinstance(exc, _AWAY))
        if isinstance(exc, SchemaError | OversizeError):  # of another bridge's it may be free at any time
            self.backoff = self.backoff or Backoff(2 * poll, REFUSED_MOST)
            self.again = now + self.backoff.pause()
        before, self.untold.is_awaited = self.untold.is_awaited, waits
        return waits and not before

    def accept(self) -> None:
        """The other side has registered it."""
        self.why, self.backoff, self.again, self.is_refused = "", None, 0.0, False
        self.untold.is_awaited = False

    def has_name(self, name: str) -> bool:
        """Whether its type has that name; "": any."""
        return self.published is not None and name in ("", self.published.type.name)

    def tell(self, target: BridgePlatform, uid: str, timeout: float, number: int = 0) -> None:
        """Under the lock: tell of what does not come, before the next object goes, as a number that is missing then is
        a loss; of what is sparse, of which that `number` goes, losses are told, too. Raises as `publish`."""
        untold = self.untold
        if number and untold.is_sparse and (lost := untold.loss_before(number)) is not None:
            target.tell_filtered(uid, lost, untold.up_to + 1, timeout, lost=True)
            untold.up_to += 1
        if untold.filtered and untold.filtered_to - untold.missing > untold.up_to:
            up_to = untold.filtered_to - untold.missing  # each word has one cause
            target.tell_filtered(uid, untold.filtered, up_to, timeout)
            untold.up_to, untold.filtered = up_to, 0
        if untold.filtered_to > untold.up_to:  # both, where there is one number for them
            count = untold.filtered + untold.missing
            target.tell_filtered(uid, count, untold.filtered_to, timeout, lost=bool(untold.missing))
            untold.up_to, untold.filtered, untold.missing = untold.filtered_to, 0, 0

    def gave_up(self, number: int) -> bool:
        """Under the lock: its oldest object does not go; whether that is a loss: no other bridge brings it."""
        is_loss = not self.is_others or self.is_former
        if is_loss and self.untold.up_to:
            self.untold.lost += 1
        else:
            self.untold.up_to = number
        return is_loss


class RelayTable:
    """Registrations of a direction, and what is parked of them all. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._relays: dict[str, Relayed] = {}
        self._parked = 0
        """Bytes that are parked."""

    def get(self, uid: str) -> Relayed | None:
        """One that is there."""
        return self._relays.get(uid)

    def made(self, uid: str, now: float) -> Relayed | None:
        """One that is there from `now` (clock) on, if it was not before; None: there are too many."""
        with self._lock:
            found = self._relays.get(uid)
            if found is None and len(self._relays) < RELAYS_MOST:
                found = self._relays[uid] = Relayed(seen=now)
            return found

    def items(self) -> list[tuple[str, Relayed]]:
        """All of them, by their ids."""
        with self._lock:
            return list(self._relays.items())

    def remove(self, uid: str) -> None:
        """One has left."""
        with self._lock:
            self._relays.pop(uid, None)

    def lose(self, count: int, name: str) -> None:
        """So many objects (0: it is not known how many) were lost of types of that name ("": of any), of one of these
        or of several: those that are sparse are to tell it."""
        sparse = [each for _, each in self.items() if each.untold.is_sparse and each.has_name(name)]
        for each in sparse:
            with each.lock:
                each.untold.lost += count
                each.untold.is_unsure |= not count or len(sparse) > 1

    def park(self, relay: Relayed, now: float, obj: InfoObject, *, first: bool) -> int:
        """Under the relay's lock: an object waits since `now` (clock); `first`: before those that are parked. The
        oldest of what is too much goes; how many are lost by that. Of the bytes one registration has SHARE times as
        many as are free at most, so that no other one finds none."""
        put = relay.parked.appendleft if first else relay.parked.append
        put((now, obj))
        self._add(relay, _size(obj))
        lost = 0
        while relay.parked and (
            len(relay.parked) > PARKED_OBJECTS or relay.bytes > SHARE * (PARKED_BYTES - self._parked)
        ):
            lost += self.give_up(relay)
        return lost

    def give_up(self, relay: Relayed) -> bool:
        """Under the relay's lock: the oldest does not go; whether it is lost. What another bridge has is not."""
        return relay.gave_up(self.unpark(relay)[1].platform.sequence)

    def unpark(self, relay: Relayed) -> tuple[float, InfoObject]:
        """Under the relay's lock: the oldest, and when it was parked (clock)."""
        since, obj = relay.parked.popleft()
        self._add(relay, -_size(obj))
        return since, obj

    def _add(self, relay: Relayed, size: int) -> None:
        relay.bytes += size
        with self._lock:
            self._parked += size


def _size(obj: InfoObject) -> int:
    """Bytes of memory that an object takes, about."""
    spooled = obj.spooled if isinstance(obj, LargeObject) else None
    return OBJECT_BYTES + len(obj.metadata) + (spooled.cost if spooled is not None else len(obj.payload))
