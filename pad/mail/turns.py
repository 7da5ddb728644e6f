"""Turns of outboxes at the mail server: when each is due, by importance, and as fast as mails may go out. Pure."""

from __future__ import annotations

import math
from typing import Final

from jbi_pubsub.core.agenda import Agenda
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import WEIGHTS, Strategy
from jbi_pubsub.core.scheduling import PriorityRing
from jbi_pubsub.pad.mail.outbox import Outbox

BURST_SECONDS: Final = 0.1
"""Burst that a pause of the mail server's link lets go, of its rate; a mail is in one piece, however large."""


class MailPace:
    """Rates at which mails may go out: so many mails a second, and the link's bytes."""

    def __init__(self, rate: float) -> None:
        """`rate`: mails a second; 0: any number."""
        self._rate = rate
        self._bucket: TokenBucket | None = None
        self._slot = self._paid = 0.0
        """When the next mail may go by the one, and by the other."""

    @property
    def slot(self) -> float:
        """When the next mail may go."""
        return max(self._slot, self._paid)

    def use(self, mails: int, now: float, size: int = 0) -> None:
        """So many mails go out now, of `size` bytes: the next one as much later as the rates ask for."""
        if self._rate:
            self._slot = max(self._slot, now) + mails / self._rate
        if self._bucket is not None:
            self._bucket.take(size, now)
            self._paid = now + self._bucket.ready_in(now)

    def limit(self, rate: float, now: float) -> None:
        """The link to the mail server takes so many bytes a second from now on; 0: any number. What is owed by the rate
        before is forgotten: on a link that was slow one mail may owe hours."""
        if rate != (self._bucket.rate if self._bucket is not None else 0.0):
            self._bucket = TokenBucket(rate, max(1.0, rate * BURST_SECONDS), now) if rate else None
            self._paid = 0.0


class SendingOrder:
    """Outboxes that are due, or will be: those of the most important contracts first, and of one level in turn."""

    def __init__(self) -> None:
        self._later: Agenda[Outbox] = Agenda()
        self._ready: PriorityRing[Outbox] = PriorityRing(Strategy("strict"), WEIGHTS)

    def set_due(self, outbox: Outbox, due: float, now: float) -> None:
        """Note when it is due; one that is ready already keeps its turn."""
        if due <= now and (outbox in self._ready.standing or -math.inf < self._later.time(outbox) <= now):
            return
        self.remove(outbox)
        if due < math.inf:
            self._later.set_time(outbox, max(due, now))

    def remove(self, outbox: Outbox) -> None:
        """Nothing of it is due."""
        self._ready.remove(outbox)
        self._later.discard(outbox)

    def pop(self, now: float) -> Outbox | None:
        """The next one that is due, which has had its turn then."""
        while (outbox := self._later.pop(now)) is not None:
            self._ready.put(outbox, 1 << outbox.level)
        level = self._ready.next()
        return self._ready.pop(level) if level >= 0 else None

    def next_due(self) -> float:
        """When one is due: 0 for now, infinity for never."""
        return 0.0 if len(self._ready) else self._later.first()

    def refresh(self) -> list[Outbox]:
        """Sort those that are ready by their levels, which may have changed; all that are due or will be."""
        ready = list(self._ready.standing)
        self._ready.clear()
        for outbox in ready:
            self._ready.put(outbox, 1 << outbox.level)
        return [*ready, *(outbox for outbox in self._later if self._later.time(outbox) < math.inf)]
