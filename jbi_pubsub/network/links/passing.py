"""Peers of a link that do not hear each other hear through whoever is between them. Pure.

A link of single peers is as one segment to its network: what comes from one goes on to the others, unchanged. No two
datagrams that are sent are equal (each has a number of its own); one that was here before goes nowhere, so that in a
ring, or where all know all, each way carries each datagram once in each direction at most.
"""

from __future__ import annotations

from typing import Final

REMEMBERED: Final = 50_000
"""Datagrams of a generation; there are two."""


class PassedOn:
    """Which datagrams were here."""

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()

    def is_new(self, datagram: bytes) -> bool:
        """Whether it was not here before; it is from now on."""
        key = hash(datagram)  # with the process's secret: nobody makes two that are equal
        if key in self._young or key in self._old:
            return False
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, set()
        self._young.add(key)
        return True
