"""Batons: the right to do a step of work, one an owner at a time. Pure: the lock of who has them.

A short step keeps the interpreter, or fights for it: two threads judge no faster than one, so there is one baton. lxml
gives the interpreter away while it evaluates an expression or reads a document, which is most of a long step: while
steps take longer than LONG_SECONDS there are more batons. A step of many cheap objects is not long: it ends after half
of that (STEP_SECONDS in tasks.py).
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

LONG_SECONDS: Final = 0.004
"""CPU time of a usual step from which on more than one is done at a time."""
LENGTH_SHARE: Final = 1 / 8
"""Weight of one more step in the usual one (the gain of TCP's round trip, RFC 6298)."""


class OwnedWork(Protocol):
    """Work of an owner, such as a registration."""

    owner: object


T = TypeVar("T", bound=OwnedWork)


class Batons(Generic[T]):
    """See the module."""

    def __init__(self, most: int) -> None:
        """`most`: batons at most."""
        self.out: set[object] = set()
        """The owner of each step that is being done."""
        self._most = most
        self._usual = 0.0
        """CPU time of a usual step, in seconds."""
        self._held: dict[object, list[T]] = {}

    @property
    def is_free(self) -> bool:
        """Whether a step may begin."""
        return len(self.out) < (self._most if self._usual > LONG_SECONDS else 1)

    def may_begin(self, work: T) -> bool:
        """Give a baton to work whose turn has come, unless its owner has one: then it is held."""
        if work.owner in self.out:
            self._held.setdefault(work.owner, []).append(work)
            return False
        self.out.add(work.owner)
        return True

    def lay_down(self, owner: object) -> list[T]:
        """The owner's step is over; work that was held for that."""
        self.out.discard(owner)
        return self._held.pop(owner, [])

    def is_awaited(self, owner: object) -> bool:
        """Whether work is held for the end of the owner's step."""
        return owner in self._held

    def learn(self, seconds: float) -> None:
        """Note the CPU time of a step."""
        self._usual += (seconds - self._usual) * LENGTH_SHARE
