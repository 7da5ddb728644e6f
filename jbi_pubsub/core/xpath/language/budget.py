"""Budgets: what subscribers have evaluated for each object is bounded, by subscriber and by registration.

Rules:
- Budgets are of what evaluations take, not of their bounds: a sum of bounds is a document that is the worst for all of
  them at once, which there is not. What is charged is a sixth of the bound: on figure 1 usual predicates take a twelfth
  to a four-hundredth, costly ones on documents made for them a sixth to a twentieth.
- An operand that the index reads once for a document (terms.py) is charged once, whoever asks for it, as far as an
  index has room for it. Index and budget count that room in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import OversizeError

from .cost import REFERENCE, Extent
from .terms import Term, Where

CHARGED: Final = 1 / 6
"""Part of a bound that a budget is charged: see the rules."""

MAX_COST_OF_SUBSCRIBER: Final = 0.02
MAX_COST_OF_REGISTRATION: Final = 0.08
"""Limit of what one subscriber, and all subscribers to one registration, may have evaluated for an object of
REFERENCE's extent, seconds of what is charged. A usual predicate that the index does not take is charged 3 to 20 us, so
that a process may have a thousand of them. All bounds of a registration are within MAX_SECONDS_OF_OBJECT: what was
taken is evaluated."""

MAX_OPERANDS: Final = 128
"""Operands of one index: terms and relative paths. Each costs every document 0.3 to some 2 us."""

MAX_ALIKE: Final = 16
"""Those that differ in their literals only. Parts of a date are some; where each predicate has another literal inside,
nobody shares the value."""


class OperandShare(NamedTuple):
    """Share in an operand: what it is but for its literals, and the bound for reading it, by extent of the document."""

    alike: Where | Term
    seconds: Callable[[Extent], float]


Shares = Mapping[Where | Term, OperandShare]


class OperandRoom:
    """Room for operands, counted by how many ask for them. One writer. `spent` is charged for all of them."""

    def __init__(self) -> None:
        self._holders: Counter[Where | Term] = Counter()
        self._alike: Counter[Where | Term] = Counter()
        self.spent = 0.0
        self.arrivals = 0
        """Operands that have come so far."""

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, operand: object) -> bool:
        return operand in self._holders

    def more(self, shares: Shares) -> float | None:
        """Charge for those of the operands that are not there yet; None: there is no room for them."""
        new = {operand: share for operand, share in shares.items() if operand not in self._holders}
        alike = Counter(share.alike for share in new.values())
        if len(self) + len(new) > MAX_OPERANDS or any(self._alike[one] + n > MAX_ALIKE for one, n in alike.items()):
            return None
        return sum(CHARGED * share.seconds(REFERENCE) for share in new.values())

    def take(self, shares: Shares) -> bool:
        """Whether there is room for all of the operands; then they are there."""
        more = self.more(shares)
        if more is None:
            return False
        self.spent += more
        for operand, share in shares.items():
            if operand not in self._holders:
                self._alike[share.alike] += 1
                self.arrivals += 1
            self._holders[operand] += 1
        return True

    def give_back(self, shares: Shares) -> bool:
        """Undo `take`; whether nobody asks for some any more."""
        held = len(self)
        for operand, share in shares.items():
            self._holders[operand] -= 1
            if not self._holders[operand]:
                del self._holders[operand]
                self.spent -= CHARGED * share.seconds(REFERENCE)
                self._alike[share.alike] -= 1
                if not self._alike[share.alike]:
                    del self._alike[share.alike]
        if not self._holders:
            self.spent = 0.0  # what rounding left
        return len(self) < held


class Charge(NamedTuple):
    """Charge for an expression: what makes it equal to others, the part CHARGED of its cost, the operands that it
    asks for, and whether nothing but these is evaluated for it where there is room for them."""

    what: Hashable
    cost: float
    shares: Shares = MappingProxyType({})
    is_shared: bool = False


class CostBudget:
    """Sum of what the expressions cost that somebody is charged for, equal ones once. Not for threads by itself."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._counts: Counter[Hashable] = Counter()
        self._sharing: set[Hashable] = set()
        self._room = OperandRoom()
        self._whole = 0.0

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def spent(self) -> float:
        """Seconds on a document of REFERENCE's extent."""
        return self._whole + self._room.spent

    def check(self, charges: Sequence[Charge], whose: str) -> None:
        """Raises OversizeError when there is no room for these. `whose` names who is charged, for people."""
        more = sum(map(self._more, charges))
        if more and self.spent + more > self._limit:
            sum_ms, limit_ms = 1000 * (self.spent + more), 1000 * self._limit
            raise OversizeError(
                f"the predicates and payload filters of {whose} may take {sum_ms:.1f} ms an object, the limit is "
                f"{limit_ms:g} ms",
                hint="Compare child steps with constants, which the index takes and which cost nothing here "
                "(docs/matching.md), or cancel other subscriptions",
                limit=self._limit,
                spent=self.spent,
                more=more,
            )

    def _more(self, charge: Charge) -> float:
        if charge.what in self._counts:
            return 0.0
        shared = self._room.more(charge.shares) if charge.shares else None
        return charge.cost if shared is None else shared + charge.cost * (not charge.is_shared)

    def add(self, charges: Sequence[Charge]) -> None:
        """They are there now."""
        for charge in charges:
            self._counts[charge.what] += 1
            if self._counts[charge.what] > 1:
                continue
            if charge.shares and self._room.take(charge.shares):
                self._sharing.add(charge.what)
            self._whole += self._alone(charge)

    def remove(self, charges: Sequence[Charge]) -> None:
        """They are gone."""
        for charge in charges:
            self._counts[charge.what] -= 1
            if self._counts[charge.what] > 0:
                continue
            del self._counts[charge.what]
            self._whole -= self._alone(charge)
            if charge.what in self._sharing:
                self._sharing.remove(charge.what)
                self._room.give_back(charge.shares)
        if not self._counts:
            self._whole = 0.0  # what rounding left

    def _alone(self, charge: Charge) -> float:
        return 0.0 if charge.is_shared and charge.what in self._sharing else charge.cost
