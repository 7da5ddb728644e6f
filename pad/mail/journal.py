"""Changes of the mail queue that its file is to be told: what one transaction writes, and what came of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from jbi_pubsub.pad.mail.letters import Ledger, Letter, LetterEvent, LetterState


class Changes(NamedTuple):
    """Changes to write to disk, in this order: `deleted` letters and `dropped` contents by number, `forgotten` ledgers;
    then new `letters`, `updated` ones, and `ledgers` by subscription."""

    deleted: Sequence[int]
    dropped: Sequence[int]
    forgotten: Sequence[str]
    letters: Sequence[Letter]
    updated: Sequence[Letter]
    ledgers: Mapping[str, Ledger]


class MailJournal:
    """Changes since the last transaction of what is to survive. One transaction is under way at a time."""

    def __init__(self) -> None:
        self._open: dict[str, Ledger] = {}
        self._contents: Counter[int] = Counter()
        """Letters of each content."""
        self._unwritten: dict[int, Letter] = {}
        """Letters that wait for the disk, by number, in order: those that are new come last."""
        self._updated: dict[int, Letter] = {}
        self._under_way: dict[int, Letter] = {}
        """Those that the transaction updates."""
        self._deleted: list[int] = []
        self._dropped: list[int] = []
        self._forgotten: list[str] = []
        self._ledgers: set[str] = set()
        self.added = self.settled = self._taken = 0
        """New letters there were, those that are on disk or lost, and those of the last transaction and before."""

    @property
    def pending(self) -> int:
        """Letters that wait for the disk."""
        return len(self._unwritten)

    @property
    def is_urgent(self) -> bool:
        """Whether letters wait for the disk that no transaction has."""
        last = next(reversed(self._unwritten.values()), None)
        return last is not None and last.state is LetterState.NEW

    @property
    def has_changed(self) -> bool:
        """Whether there is something to write."""
        return bool(self.is_urgent or self._deleted or self._updated or self._ledgers or self._forgotten)

    def open(self, uid: str, ledger: Ledger) -> None:
        """Write what happens to the mail of a subscription from now on."""
        self._open[uid] = ledger

    def forget(self, uid: str, left: Iterable[Letter] = ()) -> None:
        """The subscription has ended; letters of a time before that are `left` are not wanted."""
        for letter in left:
            self._deleted.append(letter.number)
            self._dropped.append(letter.content.number)
        self._open.pop(uid, None)
        self._ledgers.discard(uid)
        self._forgotten.append(uid)

    def add(self, letter: Letter) -> None:
        """A letter is new, or on disk from a time before."""
        self._contents[letter.content.number] += 1
        if letter.state is LetterState.NEW:
            self.added += 1
            self._unwritten[letter.number] = letter
            self._ledgers.add(letter.uid)

    def update(self, uid: str, letters: Iterable[Letter] = ()) -> None:
        """The ledger of a subscription has changed, and these letters."""
        self._ledgers.add(uid)
        self._updated.update({x.number: x for x in letters})

    def remove(self, letter: Letter) -> None:
        """A letter is about to be gone."""
        self._updated.pop(letter.number, None)
        self._unwritten.pop(letter.number, None)
        if letter.state is not LetterState.NEW:
            self._deleted.append(letter.number)
        number = letter.content.number
        self._contents[number] -= 1
        if not self._contents[number]:
            del self._contents[number]
            self._dropped.append(number)

    def take(self) -> Changes:
        """Changes since the last call, to be written in one transaction."""
        new = [x for x in self._unwritten.values() if x.state is LetterState.NEW]
        self._under_way = {n: x for n, x in self._updated.items() if x.state is not LetterState.NEW}
        taken = Changes(
            self._deleted,
            [n for n in self._dropped if not self._contents[n]],
            self._forgotten,
            [_copy(x) for x in new],
            [_copy(x) for x in self._under_way.values()],
            {uid: msgspec.structs.replace(self._open[uid]) for uid in self._ledgers},
        )
        for letter in new:
            letter.happen(LetterEvent.WRITE)
        self._deleted, self._dropped, self._forgotten = [], [], []
        self._updated = {}
        self._ledgers.clear()
        self._taken = self.added
        return taken

    def keep(self, changes: Changes) -> list[Letter]:
        """They are on disk; their letters, which wait for their turns now."""
        written = self._written(changes)
        for letter in written:
            letter.happen(LetterEvent.KEEP)
        return written

    def lose(self, changes: Changes) -> list[Letter]:
        """They could not be written; their letters, which are lost. All else waits for the next time."""
        self._deleted = [*changes.deleted, *self._deleted]
        self._dropped = [*changes.dropped, *self._dropped]
        self._forgotten = [*changes.forgotten, *self._forgotten]
        self._ledgers.update(uid for uid in changes.ledgers if uid in self._open)
        self._updated |= {n: x for n, x in self._under_way.items() if x.state is not LetterState.GONE}
        return self._written(changes)

    def _written(self, changes: Changes) -> list[Letter]:
        """The changes' letters that are still wanted; the others were cancelled, their rows go."""
        self.settled = self._taken
        found = (self._unwritten.pop(written.number, None) for written in changes.letters)
        return [letter for letter in found if letter is not None]


def _copy(letter: Letter) -> Letter:
    """As it is now: it changes while its copy is being written."""
    return replace(letter, deadline=None)
