"""The Dissemination LQM: which session's batch goes out next, over which link, at which level (QED, section IV).

It gives the paced streams of a SenderHub their turns. A stream is paced while the link that its contracts name is one
of the space's; all others go as they come. Safe from several threads; what is called on the hub's does not block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from jbi_pubsub.core.quality import Resources, Space
from jbi_pubsub.core.wire.hub import HubSender, PacedAllowance
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, MAX_BATCH_ITEMS
from jbi_pubsub.protocol.status.quality import LinkStatus

from .link import Destination, SharedLink, update_links

ASKED_MOST: Final = 1_000
"""Connections of a link that the system is asked about for a status."""


class BandwidthManager:
    """See the module. The hub's Turns."""

    def __init__(self, space: Space | None = None, *, chunk: int = CHUNK_BYTES) -> None:
        """`chunk`: see [link] chunk."""
        self._chunk = chunk
        self._lock = threading.Lock()  # covers what follows, but _coming
        self._links: dict[str, SharedLink[HubSender]] = {}
        self._round: deque[SharedLink[HubSender]] = deque()
        self._wanted: dict[HubSender, str] = {}
        """Which link they are to be on, whether there is such a one or not."""
        self._destinations: dict[HubSender, tuple[Destination[HubSender], SharedLink[HubSender]]] = {}
        self._coming: deque[HubSender] = deque()
        self.space = Space()
        self.use(space or Space())

    # -- what policies say --------------------------------------------------------------------------------------

    def use(self, space: Space) -> None:
        """Other links, rates, shares or another strategy from now on; what waits and what is under way stays."""
        now = time.monotonic()
        with self._lock:
            self.space = space
            update_links(self._links, space, self._chunk, now)
            self._round = deque(self._links.values())
            for sender in self._wanted:
                self._settle(sender, now)
            senders = list(self._wanted)
        for sender in senders:  # they have their turns by the new terms, or as they come
            sender.ready()

    def assign(self, sender: HubSender, link: str) -> None:
        """Put a sender behind that link; "": behind none."""
        with self._lock:
            if self._wanted.get(sender) == link:
                return
            self._wanted[sender] = link
            self._settle(sender, time.monotonic())
        sender.ready()

    def leave(self, sender: HubSender) -> None:
        """Note that a sender is over."""
        with self._lock:
            self._wanted.pop(sender, None)
            self._settle(sender, time.monotonic())

    def _settle(self, sender: HubSender, now: float) -> None:
        link = self._links.get(self._wanted.get(sender, ""))
        destination, before = self._destinations.get(sender, (None, None))
        if link is before:
            return
        if before is not None and destination is not None:
            before.leave(destination)
            del self._destinations[sender]
        if link is not None:
            destination = Destination(sender, sender.levels)
            link.join(destination, now)
            self._destinations[sender] = destination, link
        sender.paced = link is not None

    # -- turns --------------------------------------------------------------------------------------------------

    def put(self, sender: HubSender) -> None:
        """Note that a sender has something to send."""
        self._coming.append(sender)

    def next(self, now: float) -> tuple[HubSender, PacedAllowance] | None:
        """Links that are ready take turns; each says who is next on it."""
        if not self._round and not self._coming:  # there is no link
            return None
        with self._lock:
            self._let_come()
            for _ in range(len(self._round)):
                link = self._round[0]
                self._round.rotate(-1)
                found = link.next(now)
                if found is not None:
                    destination, level = found
                    return destination.target, PacedAllowance(MAX_BATCH_ITEMS, link.quantum, 1 << level)
        return None

    def wait(self, now: float) -> float | None:
        """Seconds until one of the links may have somebody."""
        if self._coming:
            return 0.0
        if not self._round:
            return None
        with self._lock:
            waits = [wait for link in self._round if (wait := link.wait(now)) is not None]
        return min(waits) if waits else None

    def sent(self, sender: HubSender, level: int, size: int, now: float) -> None:
        """A batch went, or could not."""
        with self._lock:
            destination, link = self._destinations.get(sender, (None, None))
            if destination is None or link is None:
                return
            if size:
                link.sent(destination, level, size, now)
            else:
                link.forget(destination)

    def acked(self, sender: HubSender, size: int, now: float) -> None:
        """So many bytes of it have arrived."""
        with self._lock:
            destination, link = self._destinations.get(sender, (None, None))
            if destination is not None and link is not None:
                link.arrived(destination, size, now)

    def gone(self, sender: HubSender) -> None:
        """Its connection is over."""
        with self._lock:
            destination, link = self._destinations.get(sender, (None, None))
            if destination is not None and link is not None:
                link.gone(destination)

    def _let_come(self) -> None:
        while self._coming:
            sender = self._coming.popleft()
            sender.heard()
            destination, link = self._destinations.get(sender, (None, None))
            if destination is not None and link is not None:
                link.put(destination)
            else:
                sender.ready()  # not paced any more: it goes as it comes

    # -- what is known ------------------------------------------------------------------------------------------

    def resources(self, link: str) -> Resources:
        """Resources of a link that conditions may ask about; nothing is known of one that is none."""
        with self._lock:
            found = self._links.get(link)
            senders = [sender for sender, (_, its) in self._destinations.items() if its is found]
            rate = found.effective_rate if found is not None else 0.0
        if found is None:
            return Resources()
        return Resources(bandwidth=rate or None, backlog=float(sum(sender.backlog() for sender in senders)))

    def status(self) -> list[LinkStatus]:
        """Status of each link, with what the system says of its connections."""
        now = time.monotonic()
        with self._lock:
            rows = [(link.status(now), link) for link in self._links.values()]
            senders = [(sender, its) for sender, (_, its) in self._destinations.items()]
        told = []
        for row, link in rows:
            ours = [sender for sender, its in senders if its is link]
            ways = [way for sender in ours[:ASKED_MOST] if (way := sender.transport()) is not None]
            told.append(
                LinkStatus(
                    **row,
                    backlog=sum(sender.backlog() for sender in ours),
                    retransmits=sum(way.retransmits for way in ways),
                    unsent=sum(way.unsent for way in ways),
                    tcp_rtt_ms=round(max((way.rtt_ms for way in ways), default=0.0), 1),
                )
            )
        return told
