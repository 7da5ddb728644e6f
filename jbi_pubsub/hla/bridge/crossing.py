"""A bridge that is joined to both its federations: what its surrogates were told goes in, what the bridge makes of that
is called, and the answers go in again."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from jbi_pubsub.core.errors import JbiError, StorageError
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.hla.exceptions import RtiError
from jbi_pubsub.hla.execution import Callback
from jbi_pubsub.hla.saves import Saves

from . import bridge as spans
from .state import Bridge, Call, Plan, Turn
from .surrogate import Surrogate

log = logging.getLogger("jbi_pubsub.hla")

TAKEN_MOST: Final = 500
"""Callbacks that are taken from a side in a round, and calls that go together."""
POLL_SECONDS: Final = 0.02
"""After which an RTI is asked again whether all others have consented."""
_FLOWING: Final = frozenset(
    ("update_attribute_values", "send_interaction", "negotiated_attribute_ownership_divestiture")
)
_TOGETHER: Final = _FLOWING | {
    "register_object_instance", "request_attribute_value_update", "modify_lookahead", "time_advance_request",
}  # fmt: skip
"""Services of which calls to one side go together: one by one each would take the time to a far RTI and back."""
_CARRYING: Final = frozenset(("reflect_attribute_values", "receive_interaction"))


class Crossing:
    """See the module; it declares first. For one thread; others may look at `bridge`."""

    def __init__(
        self, surrogates: Sequence[Surrogate], saves: Saves[Bridge], queue: int, told: set[tuple[str, str]]
    ) -> None:
        """`queue`: entries that wait for one side at most; `told`: what people were told already."""
        self.plan: Plan
        self.bridge = Bridge()
        self._surrogates = surrogates
        self._saves, self._saved_as = saves, ("", "")
        self._queue = queue
        self._told = told
        self._buckets: dict[tuple[int, bool, int], TokenBucket] = {}
        """Rates of the guard: of updates and of interactions, by side and rule."""

    def declare(self, plan: Plan, saved_as: tuple[str, str], kept: Sequence[tuple[str, Bridge]]) -> None:
        """Begin, or go on with object models that have got additions. `saved_as`: name and object models under which
        saves are kept; `kept`: what was under way at saves. Raises JbiError."""
        self.plan, self._saved_as = plan, saved_as
        self.bridge, calls = spans.declared(plan, self.bridge, kept)
        self._do(self.bridge, calls)

    def round(self) -> bool:
        """Take what the surrogates were told, let go what may go; whether there was something. Raises JbiError."""
        taken = 0
        for side, surrogate in enumerate(self._surrogates):
            if self._may_take(side):
                for callback in surrogate.take(TAKEN_MOST):
                    taken += 1
                    self._hear(side, callback)
        went = self._let_go()
        self._tell_troubles()
        return bool(taken or went)

    def ask(self) -> float:
        """Ask the RTIs what has to be asked; seconds until the next time, 0.0: there is nothing."""
        polls = [item for item in spans.due(self.plan, self.bridge) if item.what == "poll"]
        for item in polls:
            self._do(*spans.forwarded(self.plan, self.bridge, item))
        return POLL_SECONDS if polls else 0.0

    def _may_take(self, side: int) -> bool:
        """Whether there is room in the link from a side. When the other one saves or restores, and waits for this one
        to do so as well, all is taken: word of it stands behind what there is no room for, and that is no more than was
        sent before."""
        if len(self.bridge.links[side].data) < self._queue:
            return True
        return bool(self.bridge.busy[1 - side]) and self.plan.policy.consensus in ("naive", "add", "smart")

    def _hear(self, side: int, callback: Callback) -> None:
        if callback.name in _CARRYING and not self._is_within_rate(side, callback):
            turn = Turn(self.plan, self.bridge)
            turn.count(f"limited.{side}")
            self.bridge = turn.bridge
            return
        self._do(*spans.heard(self.plan, self.bridge, side, callback))

    def _is_within_rate(self, side: int, callback: Callback) -> bool:
        """Whether an update or interaction goes. A class without a rule has no limit."""
        is_interaction = callback.name == "receive_interaction"
        cls = callback.arguments[0]
        if not is_interaction:
            twin = self.bridge.objects.get((side, cls))
            cls = twin.cls if twin is not None else 0
        limit = self.plan.translation.limit(side, cls, of_interaction=is_interaction)
        if limit is None:
            return True
        now = time.monotonic()
        key = (side, is_interaction, limit.key)
        bucket = self._buckets.setdefault(key, TokenBucket(limit.rate, limit.burst, now))
        if allowed := bucket.fill(now) >= 1.0:
            bucket.take(1.0, now)
        return allowed

    def _let_go(self) -> int:
        """All that may go over the links, in order; how many went."""
        plan, went = self.plan, 0
        for side in (0, 1):
            while (control := spans.first_control(plan, self.bridge, side)) is not None:
                self._do(*spans.forwarded(plan, self.bridge, control))
                went += 1
            while found := self._discoveries(side):
                calls: tuple[Call, ...] = ()
                for item in reversed(found):  # the last first: places of the others stay
                    self.bridge, more = spans.forwarded(plan, self.bridge, item)
                    calls = more + calls
                self._do(self.bridge, calls)
                went += len(found)
            flowing: list[Call] = []
            while went < 10 * TAKEN_MOST and (due := spans.first(plan, self.bridge, side)) is not None:
                self.bridge, calls = spans.forwarded(plan, self.bridge, due)
                went += 1
                flowing.extend(calls)
                if len(flowing) >= TAKEN_MOST or not all(call.service in _FLOWING for call in calls):
                    self._do(self.bridge, tuple(flowing))
                    flowing = []
            self._do(self.bridge, tuple(flowing))
        return went

    def _discoveries(self, side: int) -> list[spans.Due]:
        """Instances of a side that may be registered now, some: they overtake what is told of others."""
        data = self.bridge.links[side].data
        if all(entry.kind != "discover" for entry in data):
            return []
        due = (item for item in spans.due(self.plan, self.bridge) if (item.what, item.side) == ("data", side))
        return [item for item in due if data[item.place].kind == "discover"][:TAKEN_MOST]

    def _do(self, bridge: Bridge, calls: tuple[Call, ...]) -> None:
        """Calls, one after the other, and what comes of them. What a save has is on disk before any is made."""
        if bridge.kept is not self.bridge.kept:
            bridge, calls = self._stored(bridge, calls)
        self.bridge = bridge
        waiting = list(calls)
        while waiting:
            side = waiting[0].side
            run = takewhile(lambda call: call.side == side and call.service in _TOGETHER, waiting[:TAKEN_MOST])  # noqa: B023  # it ends in this round
            together = list(run) or waiting[:1]
            waiting[: len(together)] = self._done(together)

    def _done(self, calls: Sequence[Call]) -> list[Call]:
        """Calls to one side, made together; what comes of them. Of the refused ones the last is put back first."""
        answers = self._surrogates[calls[0].side].do(calls)
        more: list[Call] = []
        later: list[tuple[Call, RtiError]] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, RtiError):
                later.append((call, answer))
            elif isinstance(answer, JbiError):
                raise answer
            else:
                self.bridge, found = spans.answered(self.plan, self.bridge, call, answer)
                more.extend(found)
        again: list[Call] = []
        for call, error in reversed(later):
            log.debug("%s refused: %s", call.service, error)
            self.bridge, found = spans.refused(self.plan, self.bridge, call, error)
            again[:0] = found
        return more + again

    def _stored(self, bridge: Bridge, calls: tuple[Call, ...]) -> tuple[Bridge, tuple[Call, ...]]:
        """On disk, or the save has failed."""
        before = self.bridge.kept
        for label in bridge.order:
            if bridge.kept[label] is not before.get(label):
                try:
                    self._saves.put(*self._saved_as, label, bridge.kept[label])
                except StorageError as exc:
                    log.error("%s", exc)
                    bridge, calls = spans.not_kept(self.plan, bridge, label, calls)
        for label in before:
            if label not in bridge.kept:
                self._saves.drop(self._saved_as[0], label)
        return bridge, calls

    def _tell_troubles(self) -> None:
        counters, policy = self.bridge.counters, self.plan.policy
        before = sum(counters.get(f"before_us.{side}", 0) for side in (0, 1))
        if before and policy.info == "restrict" and ("info", "restrict") not in self._told:
            self._told.add(("info", "restrict"))
            log.warning(
                "%d instances were there before the bridge, whose values are not known to the other side until they "
                "change (info = 'restrict': the bridge comes first)", before,
            )  # fmt: skip
        for each in spans.pending(self.plan, self.bridge):
            key = (each.kind, each.label)
            if each.is_deadlocked and key not in self._told:
                self._told.add(key)
                log.error(
                    "DEADLOCK(%s, %s): both sides of the bridge wait for each other (consensus = %r)",
                    each.kind, each.label, policy.consensus,
                )  # fmt: skip
