"""A link that destinations share, on a virtual clock: a pipe with a rate, a distance and a deep buffer behind it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import LinkTerms, Strategy
from jbi_pubsub.core.wire.stream import CHUNK_BYTES
from jbi_pubsub.qos.link import BURST_SECONDS, Destination, SharedLink

KBPS = 1_000 / 8
"""Bytes a second."""


@dataclass
class Receiver:
    """Somebody behind the link, and what waits for him: sizes by level. `endless` levels never run out."""

    name: str
    waiting: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)
    endless: dict[int, int] = field(default_factory=dict)
    answers: bool = True

    def levels(self) -> int:
        return sum(1 << level for level in {*self.endless, *(at for at, queue in self.waiting.items() if queue)})


@dataclass
class Arrival:
    """What came, when, and when it began to wait (of endless ones: when it was sent)."""

    at: float
    whose: str
    level: int
    size: int
    since: float


class Field:
    """The link under test before a pipe of `rate` bytes a second, `distance` seconds long (both ways), with a buffer
    without end. Batches are filled up to the link's quantum."""

    def __init__(
        self,
        terms: LinkTerms,
        strategy: Strategy,
        *,
        rate: float = math.inf,
        distance: float = 0.001,
        burst: float = 0.0,
        busy: float = 0.0,
    ) -> None:
        """`burst`: bytes that pass at once when nothing has passed for long; `busy`: seconds of each one in which no
        acknowledgement comes, as receivers have other things to do."""
        self.now = 1_000.0
        self.link: SharedLink[Receiver] = SharedLink(terms, strategy, CHUNK_BYTES, self.now)
        self.rate, self.distance, self.busy = rate, distance, busy
        self._tokens = TokenBucket(rate, burst, self.now) if burst else None
        self.arrivals: list[Arrival] = []
        """Of whole objects; of endless ones each batch."""
        self.carried: list[tuple[float, int]] = []
        self.sent: list[tuple[float, int]] = []
        self._buffer: deque[tuple[int, Callable[[], None]]] = deque()
        self._passes = self.now
        self._turn = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._at: dict[str, Destination[Receiver]] = {}

    def receiver(self, name: str, *, answers: bool = True, **endless: int) -> Receiver:
        """One more: receiver("a", level_4=1_000) has objects of that size at that level, without end."""
        made = Receiver(name, endless={int(key[6:]): size for key, size in endless.items()}, answers=answers)
        destination = self._at[name] = Destination(made, made.levels)
        self.link.join(destination, self.now)
        self.link.put(destination)
        return made

    def give(self, to: Receiver, level: int, size: int) -> None:
        """An object begins to wait."""
        to.waiting.setdefault(level, deque()).append((self.now, size))
        self.link.put(self._at[to.name])

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """So long from now."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def run(self, seconds: float) -> None:
        """Until so much later."""
        end = self.now + seconds
        while True:
            self._send()
            wait = self.link.wait(self.now)
            then = min(
                end, self.now + wait if wait is not None else math.inf, self._events[0][0] if self._events else math.inf
            )
            assert wait != 0.0 or then > self.now or self._events, "the link says now, and then nobody"
            self.now = then
            if then >= end:
                return
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()

    def _send(self) -> None:
        while (found := self.link.next(self.now)) is not None:
            destination, level = found
            to, size, since = destination.target, 0, self.now
            while size < self.link.quantum:
                queue = to.waiting.get(level)
                if queue:
                    begun, piece = queue.popleft()
                    since = min(since, begun)
                    rest = self.link.quantum - size
                    if piece > rest:  # the rest of it goes as the next chunk
                        queue.appendleft((begun, piece - rest))
                        piece = rest
                    size += piece
                elif level in to.endless:
                    size += to.endless[level]
                else:
                    break
            self.link.sent(destination, level, size, self.now)
            self.sent.append((self.now, size))
            self._carry(destination, level, size, since)

    def _carry(self, destination: Destination[Receiver], level: int, size: int, since: float) -> None:
        done = not destination.target.waiting.get(level)

        def arrive() -> None:
            self.carried.append((self.now, size))
            if done or level in destination.target.endless:
                self.arrivals.append(Arrival(self.now, destination.target.name, level, size, since))

        def acknowledge() -> None:
            if destination.target.answers:
                self.link.arrived(destination, size, self.now)

        def through() -> None:
            self.at(self.distance / 2, arrive)
            self.at(self.distance + max(0.0, self.busy - (self.now + self.distance) % 1.0), acknowledge)

        self._buffer.append((size, through))
        if len(self._buffer) == 1:
            self._pass(size)

    def _pass(self, size: float) -> None:
        """The first of the buffer goes through the pipe, of which so many bytes are left."""
        turn = self._turn = self._turn + 1
        took = size / self.rate
        if self._tokens is not None:
            took = max(0.0, size - self._tokens.fill(self.now)) / self.rate
            self._tokens.take(size, self.now)
        self._passes = self.now + took

        def passed() -> None:
            if turn == self._turn:  # not since the rate has changed
                self._buffer.popleft()[1]()
                if self._buffer:
                    self._pass(self._buffer[0][0])

        self.at(took, passed)

    def change(self, rate: float) -> None:
        """The pipe has another rate."""
        left = (self._passes - self.now) * self.rate
        self.rate = rate
        if self._buffer:
            self._pass(left)

    def served(self, since: float = 0.0) -> dict[tuple[str, int], int]:
        """Bytes by receiver and level, sent after so many seconds."""
        found: dict[tuple[str, int], int] = {}
        for one in self.arrivals:
            if one.at >= 1_000.0 + since:
                found[one.whose, one.level] = found.get((one.whose, one.level), 0) + one.size
        return found

    def mean(self, since: float = 0.0) -> float:
        """Bytes a second that arrived since then."""
        return sum(size for at, size in self.carried if at >= 1_000.0 + since) / (self.now - 1_000.0 - since)


FAIR, STRICT = Strategy(), Strategy("strict")
EVEN = Strategy("weighted_fair", link=(1, 1, 1, 1, 1))


def _limited(rate: float, **more: Any) -> LinkTerms:
    return LinkTerms(name="l", rate=rate, reserve=more.pop("reserve", 0.0), **more)


@pytest.mark.row("Q-47")
@pytest.mark.parametrize("kbps", [300, 8_000, 100_000])
def test_a_limit_is_used_up_and_no_second_carries_more(kbps: int) -> None:
    # Given objects without end for a link with a limit
    field = Field(_limited(kbps * KBPS), FAIR)
    field.receiver("a", level_2=3_000)
    field.run(20.0)
    # Expect the mean, and in any second no more than rate, burst and one batch
    limit = kbps * KBPS
    one = max(size for _, size in field.sent)
    assert 0.97 * limit * 20 <= field.mean() * 20 <= limit * 20 + max(limit * BURST_SECONDS, 512) + one
    most = limit + max(limit * BURST_SECONDS, 512) + one
    begins = [at for at, _ in field.sent]
    for begin in begins[:: max(1, len(begins) // 200)]:
        assert sum(size for at, size in field.sent if begin <= at < begin + 1.0) <= most


@pytest.mark.row("Q-48")
def test_twenty_destinations_together_keep_the_limit_and_get_the_same() -> None:
    field = Field(_limited(800 * KBPS), FAIR)
    for n in range(20):
        field.receiver(f"{n}", level_2=1_000)
    field.run(60.0)
    assert 0.97 <= field.mean() / (800 * KBPS) <= 1.002
    parts = field.served().values()
    assert max(parts) - min(parts) <= 12_000


def test_fair_is_by_weights_in_bytes_and_strict_serves_the_highest_alone() -> None:
    # Given two levels with weights 2:1, objects of very different size, a thousand of one beside one of the other
    weights = Strategy("weighted_fair", link=(1, 1, 1, 1, 2))
    field = Field(_limited(300 * KBPS), weights)
    field.receiver("a", level_4=100, level_0=30_000)
    field.run(200.0)
    served = field.served()
    assert served["a", 4] / served["a", 0] == pytest.approx(2.0, rel=0.05)
    strict = Field(_limited(300 * KBPS), STRICT)
    strict.receiver("a", level_4=3_000)
    strict.receiver("b", level_3=3_000)
    strict.run(20.0)
    assert set(strict.served()) == {("a", 4)}


@pytest.mark.row("Q-44")
def test_what_others_do_not_need_is_had_by_those_who_wait() -> None:
    field = Field(_limited(300 * KBPS), FAIR)
    field.receiver("a", level_0=1_000)
    field.run(10.0)
    assert field.mean() / (300 * KBPS) >= 0.97


def test_a_guaranteed_share_holds_under_strict_and_is_no_limit() -> None:
    # Given a tenth for importance 1 beside endless importance 5
    terms = _limited(800 * KBPS, min_share=(0.1, 0.0, 0.0, 0.0, 0.3))
    field = Field(terms, STRICT)
    field.receiver("a", level_4=2_000, level_0=2_000)
    field.run(30.0)
    served = field.served()
    assert served["a", 0] / (800 * KBPS * 30) == pytest.approx(0.1, abs=0.01)
    assert served["a", 4] / (800 * KBPS * 30) == pytest.approx(0.9, abs=0.02)
    # Expect all of it for importance 1, when nobody else wants anything
    alone = Field(terms, STRICT)
    alone.receiver("a", level_0=2_000)
    alone.run(10.0)
    assert alone.mean() / (800 * KBPS) >= 0.97


def test_one_destination_gets_no_more_than_its_own_part_and_the_others_the_rest() -> None:
    field = Field(_limited(800 * KBPS, each=200 * KBPS), FAIR)
    field.receiver("a", level_4=2_000)
    field.run(10.0)
    assert field.mean() == pytest.approx(200 * KBPS, rel=0.03)
    field.receiver("b", level_0=2_000)
    field.run(10.0)
    assert field.served(10.0)["b", 0] == pytest.approx(2_000 * KBPS, rel=0.05)


def test_destinations_that_wait_until_the_same_time_go_on_in_their_order() -> None:
    # Given destinations in any order of their addresses, all of them at the end of their part since now
    field = Field(_limited(800 * KBPS, each=200 * KBPS), FAIR)
    for name in "abcdefgh":
        field.receiver(name, level_2=2_000)
    ways = sorted(field._at.values(), key=id, reverse=True)
    for way in ways:
        assert way.bucket is not None
        way.bucket.take(20_000, field.now)
        field.link.forget(way)
        field.link.put(way)
    assert field.link.next(field.now) is None
    # When they may go on, expect them in the order in which they came
    later = field.now + 10.0
    came = []
    while found := field.link.next(later):
        came.append(found[0])
        field.link.forget(found[0])
    assert came == ways


def test_the_reserve_and_the_networks_own_headers_are_kept_off() -> None:
    field = Field(_limited(800 * KBPS, reserve=0.03, overhead=52), FAIR)
    field.receiver("a", level_2=1_448)
    field.run(20.0)
    assert field.mean() / (800 * KBPS) == pytest.approx(0.97 * 1_448 / 1_500, rel=0.01)
    assert Field(_limited(1_000.0, reserve=0.03), FAIR).link.effective_rate == 900  # 100 bytes a second at least


def test_who_has_something_of_another_level_by_now_has_his_turn_there() -> None:
    # Given somebody whose lane falls from the highest to the lowest level when the important object has gone
    field = Field(_limited(300 * KBPS), STRICT, distance=2.0)
    one = field.receiver("one")
    field.give(one, 4, 500)
    found = field.link.next(field.now)
    assert found is not None
    assert found[1] == 4
    one.waiting = {0: deque([(field.now, 500)])}
    field.link.sent(found[0], 4, 500, field.now)
    # When nobody says so, expect the link to see it all the same, and not with the acknowledgement, two seconds later
    field.run(0.5)
    assert [size for _, size in field.sent] == [500]


def test_what_is_urgent_waits_for_one_batch_and_not_for_all_that_came_before() -> None:
    # Given 300 kbit/s, 70 KB of imagery under way at any time, and an urgent report each second
    field = Field(_limited(300 * KBPS), STRICT, rate=300 * KBPS)
    bulk, urgent = field.receiver("bulk"), field.receiver("urgent")
    for second in range(30):
        for _ in range(2):
            field.at(second, lambda: field.give(bulk, 0, 70_000))
        field.at(second + 0.5, lambda: field.give(urgent, 4, 500))
    field.run(32.0)
    delays = [one.at - one.since for one in field.arrivals if one.whose == "urgent"]
    assert len(delays) == 30
    assert max(delays) <= 0.25  # two batches of 50 ms, its own 13 ms, and the pipe
    assert 0.97 <= sum(size for _, size in field.sent) / 32 / (300 * KBPS) <= 1.01


def test_who_does_not_answer_holds_up_no_other() -> None:
    # Given two receivers, one of which acknowledges nothing from the second second on
    field = Field(_limited(800 * KBPS), EVEN, rate=800 * KBPS)
    dead = field.receiver("dead", level_2=2_000)
    field.receiver("well", level_2=2_000)
    field.run(2.0)
    dead.answers = False
    field.run(20.0)
    # Expect the other one to have the link, but for the moment in which nobody knows
    assert field.served(5.0)["well", 2] / 17 / (800 * KBPS) >= 0.97
    # When its connection ends and another one comes, expect it to have its half again
    field.link.gone(field._at["dead"])
    dead.answers = True
    field.link.put(field._at["dead"])
    field.run(10.0)
    assert field.served(22.0)["dead", 2] / 10 / (800 * KBPS) == pytest.approx(0.5, abs=0.05)


def test_a_link_of_another_rate_is_used_at_that_rate_at_once() -> None:
    field = Field(_limited(8_000 * KBPS), FAIR)
    field.receiver("a", level_2=2_000)
    field.run(5.0)
    field.link.set(_limited(64 * KBPS), STRICT, field.now)
    assert field.link.quantum == 512
    field.run(10.0)
    assert field.served(6.0)["a", 2] / 9 == pytest.approx(64 * KBPS, rel=0.05)


# -- measured links ---------------------------------------------------------------------------------------------------


def _measured(rate_kbps: float, distance: float, strategy: Strategy = STRICT) -> Field:
    return Field(LinkTerms(name="l"), strategy, rate=rate_kbps * KBPS, distance=distance)


@pytest.mark.parametrize(
    ("kbps", "distance", "goodput"),
    [(64, 0.02, 0.93), (800, 0.0, 0.93), (800, 0.02, 0.93), (8_000, 0.002, 0.93), (100_000, 0.01, 0.93),
     (800, 0.6, 0.93), (8_000, 0.6, 0.93)],  # satellites
)  # fmt: skip
def test_an_unknown_link_is_filled_and_its_buffer_is_not(kbps: int, distance: float, goodput: float) -> None:
    # Given bulk without end over a link that nobody has told the rate of, and 2 KB of urgent each 0.5 s
    field = _measured(kbps, distance)
    bulk, urgent = field.receiver("bulk", level_0=500 if kbps == 64 else 2_000), field.receiver("urgent")
    for half in range(120):
        field.at(half / 2, lambda: field.give(urgent, 4, 2_000))
    field.run(60.0)
    assert bulk.levels()
    # Expect goodput, the distance, and what is urgent soon: its own transmission, the way there and back (it may come
    # while the distance is looked for), and 0.3 s
    assert field.mean(5.0) / (kbps * KBPS) >= goodput
    delays = sorted(one.at - one.since for one in field.arrivals if one.whose == "urgent" and one.since > 1_005.0)
    assert delays[int(0.95 * len(delays))] <= 2_000 / (kbps * KBPS) + distance + 0.3
    told = field.link.status(field.now)
    assert told["estimate"] == pytest.approx(kbps * KBPS, rel=0.15)
    assert told["rtt_min_ms"] == pytest.approx(1_000 * distance, abs=max(130, 200 * distance))


def test_a_measured_link_follows_within_three_seconds_up_and_down() -> None:
    # Given 800 kbit/s, then 8 Mbit/s, then 800 again
    field = _measured(800, 0.01)
    field.receiver("bulk", level_0=2_000)
    urgent = field.receiver("urgent")
    for half in range(80):
        field.at(half / 2, lambda: field.give(urgent, 4, 10_000))
    field.run(10.0)
    field.change(8_000 * KBPS)
    field.run(10.0)
    field.change(800 * KBPS)
    field.run(20.0)
    # Expect the higher rate to be used within 3 s, and urgent ones to be soon again 3 s after it fell
    risen = [size for at, size in field.carried if 1_013.0 <= at < 1_020.0]
    assert sum(risen) / 7 / (8_000 * KBPS) >= 0.93
    late = [one.at - one.since for one in field.arrivals if one.whose == "urgent" and one.since >= 1_023.0]
    assert late
    assert max(late) <= 0.1 + 0.3


def test_from_eight_megabits_to_64_kilobits_and_back_within_three_seconds() -> None:
    field = _measured(8_000, 0.01)
    field.receiver("bulk", level_0=2_000)
    field.run(10.0)
    under_way = field.link.in_flight_most
    field.change(64 * KBPS)
    field.run(3.0)
    # Expect what is under way to be what was, and nothing beside
    assert field.link.status(field.now)["pending"] <= 2 * under_way
    field.change(8_000 * KBPS)
    field.run(5.0)
    assert field.served(15.0)["bulk", 0] / 3 / (8_000 * KBPS) >= 0.93


def test_a_burst_that_passes_at_once_is_no_rate() -> None:
    # Given a link that lets a batch pass at once after a pause, and now and then something to carry
    field = Field(LinkTerms(name="l"), STRICT, rate=800 * KBPS, burst=5_000)
    bulk = field.receiver("bulk")
    for second in range(20):
        field.at(second, lambda: field.give(bulk, 0, 30_000))
    # When
    most = 0.0
    for _ in range(200):
        field.run(0.1)
        most = max(most, field.link.effective_rate)
    # Expect no more than what the first batch says, of 8 KB in 50 ms
    assert most <= 1.7 * 800 * KBPS


def test_acknowledgements_that_come_all_at_once_are_no_rate() -> None:
    # Given a receiver who is busy with other things for a part of each second
    field = Field(LinkTerms(name="l"), STRICT, rate=8_000 * KBPS, distance=0.002, busy=0.08)
    field.receiver("bulk", level_0=2_000)
    # When
    estimates = []
    for _ in range(100):
        field.run(0.1)
        estimates.append(field.link.effective_rate)
    # Expect
    assert max(estimates) <= 1.3 * 8_000 * KBPS


def test_a_link_with_little_to_carry_keeps_its_estimate() -> None:
    field = _measured(800, 0.01)
    bulk = field.receiver("bulk", level_0=2_000)
    field.run(10.0)
    bulk.endless.clear()
    for second in range(20):
        field.at(second, lambda: field.give(bulk, 0, 100))
    field.run(20.0)
    assert field.link.effective_rate == pytest.approx(100_000, rel=0.15)


def test_destinations_of_a_measured_link_share_what_is_under_way() -> None:
    field = _measured(800, 0.01)
    for n in range(10):
        field.receiver(f"{n}", level_0=2_000)
    urgent = field.receiver("urgent")
    for half in range(60):
        field.at(half / 2, lambda: field.give(urgent, 4, 2_000))
    field.run(30.0)
    delays = sorted(one.at - one.since for one in field.arrivals if one.whose == "urgent" and one.since > 1_005.0)
    assert delays[int(0.95 * len(delays))] <= 0.02 + 0.3
    assert field.mean(5.0) / (800 * KBPS) >= 0.93
