"""Turns: the order in which the paced streams of a hub send, and what they tell of what is under way.

A hub may have Turns, which say of *paced* streams whose batch goes next, when, and of which levels. The others have
turns as they come, as without. Turns learn of each batch that goes, and of each that is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from .hub_connection import Transport


class PacedAllowance(NamedTuple):
    """Allowance of a paced stream at its turn: items, bytes (one item may exceed them), and of which levels (a bit
    mask)."""

    max_items: int
    max_bytes: int
    levels: int


class HubStream(Protocol):
    """A stream as its hub and Turns know it. `do` and the steps behind it are for the hub's thread alone."""

    paced: bool
    levels: Callable[[], int]
    backlog: Callable[[], int]

    def ready(self) -> None:
        """There is something to take."""

    def heard(self) -> None:
        """Turns have it among those who wait: `ready` puts it again from now on."""

    def transport(self) -> Transport | None:
        """State of the way as the system knows it."""

    def do(self, step: Callable[..., None], *arguments: object) -> None:
        """Do one of the steps that follow; whatever fails ends this stream's connection, and no other."""

    def serve(self, mask: int) -> None:
        """The socket can be read, written, or both."""

    def turn(self) -> None:
        """Send one batch."""

    def paced_turn(self, allowance: PacedAllowance) -> None:
        """Send one batch, as Turns allow it."""

    def drop_if_stalled(self) -> None:
        """End the connection of a peer that takes nothing."""

    def end(self, why: str) -> None:
        """End the connection."""


class Turns(Protocol):
    """Order in which paced streams send. On the hub's thread but for `put`; none may block."""

    def put(self, sender: HubStream) -> None:
        """Note that it has something to send, maybe at other levels than before. Any thread."""

    def next(self, now: float) -> tuple[HubStream, PacedAllowance] | None:
        """Stream whose turn it is."""

    def wait(self, now: float) -> float | None:
        """Seconds until `next` may say somebody else; None: not before something is put or acknowledged."""

    def sent(self, sender: HubStream, level: int, size: int, now: float) -> None:
        """Note that it has sent so many bytes, its framing included, compressed if that was agreed on. 0: it could not,
        and is put again when it can."""

    def acked(self, sender: HubStream, size: int, now: float) -> None:
        """So many bytes of those are acknowledged."""

    def gone(self, sender: HubStream) -> None:
        """Its connection is over."""


class TurnsAccount:
    """Account of one stream with the Turns of its hub, if it has any: the batches that are under way."""

    def __init__(self, turns: Turns | None) -> None:
        self.level = 0
        """Level of the last batch, where it is paced."""
        self.under_way: deque[tuple[int, int]] = deque()
        """Batches of a paced stream: the last number of each, and its bytes as they went."""
        self._turns = turns

    def sent(self, stream: HubStream, last: int, size: int, now: float) -> None:
        """A batch with items up to `last` has gone, in so many bytes; 0: none could."""
        if self._turns is None:
            return
        if size:
            self.under_way.append((last, size))
        self._turns.sent(stream, self.level, size, now)

    def acked(self, stream: HubStream, position: int, now: float) -> None:
        """The peer has all items up to `position`."""
        size = 0
        while self.under_way and self.under_way[0][0] <= position:
            size += self.under_way.popleft()[1]
        if size and self._turns is not None:
            self._turns.acked(stream, size, now)

    def gone(self, stream: HubStream) -> None:
        """Its connection is over, and what was under way on it."""
        self.under_way.clear()
        if stream.paced and self._turns is not None:
            self._turns.gone(stream)
