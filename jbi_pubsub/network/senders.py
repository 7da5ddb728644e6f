"""Neighbours on a network: numbers of their datagrams that have come, and how much each may ask. Pure.

Bounded: so many senders; so many answers to each a second, and to all that have not announced themselves together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final, NamedTuple

from jbi_pubsub.core.pacing import TokenBucket

SENDERS_MOST: Final = 10_000
TOLD_MOST: Final = 200
"""Senders that a request or an announcement tells of."""
SILENT_SECONDS: Final = 30.0
"""A sender that is silent for so long has no place where there is no room."""
NUMBERS_MOST: Final = 1 << 31
"""Numbers by which a sender that was started anew is ahead, at least."""
ANSWERS_PER_SECOND: Final = 20_000
"""Serials that are looked up for one who asks, in a second."""
ANSWERS_TO_UNKNOWN: Final = 2_000
OVERRUN_PART: Final = 0.1
"""Part of a network's rate that goes to all together that lose most of what comes."""
BLOCK_BYTES: Final = 1_500
LATE_MOST: Final = 1_000
"""Times that are remembered of a sender, for the reorder window."""
COUNTED_LEAST: Final = 50
"""Datagrams of which a loss is counted, at least."""
ABSENT_SECONDS: Final = 5.0
"""Without anything from a sender for so long one of us was away: that is no loss by which a rate is judged."""
LEFT_MOST: Final = 100
LOSS_TOLD: Final = 1.0
"""Percent of loss that is told, at least."""


class Asker(NamedTuple):
    """One who asks, on a network of so many bytes a second."""

    sender: bytes
    is_known: bool
    """The asker has announced itself."""
    is_overrun: bool
    """The asker loses most of what somebody sends."""
    rate: float


class _Sender:
    """Numbers of a sender's datagrams that have come."""

    __slots__ = ("_came", "_counted", "_late", "answers", "closed", "heard", "loss", "put_at", "top")

    def __init__(self, now: float) -> None:
        self.top = 0
        self.loss = 0.0
        """Percent that did not come, when it was counted last."""
        self.heard = now
        self.put_at = 0.0
        """When it put a block here last."""
        self.answers = TokenBucket(ANSWERS_PER_SECOND, ANSWERS_PER_SECOND, now)
        self._came = 0
        self._counted = 0
        """The greatest number when it was counted last."""
        self.closed = 0
        """The number up to which nothing more comes."""
        self._late: list[tuple[float, int]] = []
        """When a number became the greatest: what is below it comes within the reorder window, or never."""

    def note(self, number: int, now: float) -> None:
        self._came += 1
        if now - self.heard > ABSENT_SECONDS:
            self._counted += max(0, number - self.top - 1)
        self.heard = now
        if number > self.top:
            if number - self.top > NUMBERS_MOST:  # it has been started anew
                self._came, self._counted = 1, number - 1
            self.top = number
            if not self._late or now > self._late[-1][0]:
                self._late.append((now, number))
            else:
                self._late[-1] = (now, number)
            if len(self._late) > LATE_MOST:
                del self._late[::2]

    def count_loss(self) -> None:
        """Count what has not come since this was done last, if it was enough to say something."""
        sent = self.top - self._counted
        if sent >= COUNTED_LEAST:
            self.loss = 100 * max(0.0, 1 - self._came / sent)
            self._came, self._counted = 0, self.top

    def close(self, before: float) -> int:
        """The number up to which nothing more comes, where all was sent before a time."""
        at = 0
        while at < len(self._late) and self._late[at][0] <= before:
            self.closed = self._late[at][1]
            at += 1
        del self._late[:at]
        return self.closed


class Senders:
    """Senders on a network."""

    def __init__(self) -> None:
        self._senders: dict[bytes, _Sender] = {}
        self._of_unknown = TokenBucket(ANSWERS_TO_UNKNOWN, ANSWERS_TO_UNKNOWN)
        self._of_overrun = TokenBucket(1.0, 1.0)

    def __len__(self) -> int:
        return len(self._senders)

    def note(self, sender: bytes, number: int, now: float, *, has_block: bool) -> None:
        """A datagram of a sender has come. `has_block`: with a block of a log."""
        found = self._senders.get(sender)
        if found is None:
            if len(self._senders) >= SENDERS_MOST:
                return
            found = self._senders[sender] = _Sender(now)
        found.note(number, now)
        if has_block:
            found.put_at = now

    def bucket(self, asker: Asker, now: float) -> TokenBucket:
        """Answers to one who asks."""
        found = self._senders.get(asker.sender)
        if found is None or not asker.is_known:
            return self._of_unknown
        if asker.is_overrun:
            rate = max(asker.rate * OVERRUN_PART / BLOCK_BYTES, 1.0)
            if rate != self._of_overrun.rate:
                self._of_overrun.set(rate, rate, now)
            return self._of_overrun
        return found.answers

    def closed(self, before: float, now: float, first: Container[bytes]) -> dict[bytes, int]:
        """For each that was heard lately the number up to which nothing more comes, where all was sent before a time;
        for `first` and those that have put blocks here, where there is no room for all."""
        heard = [sender for sender, each in self._senders.items() if each.heard > now - SILENT_SECONDS]
        if len(heard) > TOLD_MOST:
            heard.sort(key=lambda sender: (sender in first, self._senders[sender].put_at, self._senders[sender].heard))
            heard = heard[-TOLD_MOST:]
        return {sender: self._senders[sender].close(before) for sender in heard}

    def count_losses(self, now: float) -> None:
        """Count what has not come of each sender since this was done last; forget those that are silent."""
        for sender, each in list(self._senders.items()):
            each.count_loss()
            each.close(now - SILENT_SECONDS)
            if each.heard < now - SILENT_SECONDS:
                del self._senders[sender]

    def losses(self) -> dict[bytes, float]:
        """Percent of each sender's datagrams that did not come, when it was counted last; of the worst."""
        found = {sender: each.loss for sender, each in self._senders.items() if each.loss >= LOSS_TOLD}
        if len(found) > TOLD_MOST:
            found = dict(sorted(found.items(), key=lambda each: each[1])[-TOLD_MOST:])
        return found


class SentNumbers:
    """Numbers of our own datagrams on a network, and when they left, now and then one."""

    def __init__(self) -> None:
        self._left: deque[tuple[float, int]] = deque(maxlen=LEFT_MOST)
        self._before = 0

    def note(self, number: int, now: float, step: float) -> None:
        """One has left; remembered is one in so many seconds."""
        if not self._left or self._left[-1][0] <= now - step:
            self._left.append((now, number))

    def before(self, when: float) -> int:
        """The greatest number that is known to have left before a time."""
        while self._left and self._left[0][0] <= when:
            self._before = self._left.popleft()[1]
        return self._before
