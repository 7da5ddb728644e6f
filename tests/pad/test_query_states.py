"""A query of an archive has one state, in a table: lives of queries, led by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jbi_pubsub.core.errors import AccessDeniedError, BackPressureError, JbiError
from jbi_pubsub.core.history import HistoryQuery, Progress, QueryResult
from jbi_pubsub.core.info_object import Cause, Head, Parcel, pack
from jbi_pubsub.core.quality import Contract, GrantedQos, Settings
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.quota import RequestQuota
from jbi_pubsub.pad.past.feeds import ArchiveFeed, FeedThread
from jbi_pubsub.pad.past.queries import QUERY, ArchiveQuery, QueryService, QueryState
from jbi_pubsub.pad.past.scopes import QueryPlan
from jbi_pubsub.protocol.deliveries import FINISHED, ITEM, PLACED, POSITION, Heard
from jbi_pubsub.protocol.replies import QueryEnd
from jbi_pubsub.protocol.requests import QueryRequest


def _nothing() -> None:
    pass


def result(position: int) -> QueryResult:
    head = Head(f"o-{position}", "registration-1", position, 1.0, "t", "1.0", b"<m/>", 0)
    return QueryResult(position, 1.0, b"".join(map(bytes, pack(head, b"").parts)))


class HandThread(FeedThread):
    """The thread of feeds, whose turns are taken by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__("hand", lambda found: Parcel.received(found.data), clock=lambda: self.now)

    def start(self) -> None:
        pass

    def turn(self) -> None:
        """Turns of all that are ready, or due."""
        while not self._is_stopping and self._turns.first() <= self.now:
            feed: ArchiveFeed | None = self._next()
            assert feed is not None
            self._serve(feed)


class HandResults:
    """An open query of an archive, whose results come by hand."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.ahead: list[int] = []
        self.made = itertools.count(1)
        self.state = "running"
        self.is_cancelled = False
        self.before: Callable[[], None] = _nothing
        """Called when the next look comes."""

    def take(self, count: int, _size: int) -> list[QueryResult]:
        taken, self.ahead = self.ahead[:count], self.ahead[count:]
        return [result(position) for position in taken]

    def progress(self) -> Progress:
        before, self.before = self.before, _nothing
        before()
        return Progress("running" if self.ahead else self.state)  # type: ignore[arg-type]  # one of them

    def cancel(self) -> None:
        self.is_cancelled = True


class HandSource:
    """An archive that answers as it is told: see QuerySource."""

    incarnations: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.opened: list[HandResults] = []
        self.refuses = self.denies = False
        self.meanwhile: Callable[[], None] = _nothing
        """Called while the next call is under way."""

    def _call(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, _nothing
        meanwhile()

    def plan(self, request: QueryRequest, caller: Any) -> QueryPlan:
        if self.denies:
            self._call()
            raise AccessDeniedError("denied")
        return QueryPlan(request, caller, HistoryQuery(scopes=()))

    def open(self, _plan: QueryPlan, wake: Callable[[], None]) -> HandResults:
        results = HandResults(wake)
        wake()
        self._call()
        if self.refuses:
            raise BackPressureError("too many")
        self.opened.append(results)
        return results

    def stop(self, timeout: float) -> None:
        pass

    count: Any = None
    explain: Any = None


class CountedContracts:
    """Contracts that are open."""

    def __init__(self) -> None:
        self.quota = RequestQuota()
        self.contract: Contract | None = None
        self.count = 0

    def open(self, *_given: Any) -> Any:
        self.count += 1
        return self.contract, GrantedQos()

    def end(self, _contract: Any) -> None:
        self.count -= 1


class Life:
    """Queries of one session of a delegate, and the subscriber, who reads by hand."""

    def __init__(self) -> None:
        self.thread, self.source, self.contracts = HandThread(), HandSource(), CountedContracts()
        self.budget = Budget(1 << 20)
        self.session = SubscriberSession("s", name="test", budget=self.budget, hub=SenderHub(name="test"))
        self.service = QueryService(self.source, self.thread, self.contracts, itertools.count(1).__next__, 10)
        self.is_closed = False
        self.found: dict[int, list[int]] = {}
        self.ended: dict[int, str] = {}

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.thread.is_stopping

    def ask(self, meanwhile: Callable[[], None] = _nothing, *, refuses: bool = False, timeout: float = 0.0) -> None:
        self.source.meanwhile, self.source.refuses = meanwhile, refuses
        try:
            opened = self.service.open(self.session, QueryRequest(bound=3, timeout=timeout), None)
            self.found.setdefault(opened.number, [])
        except JbiError:
            assert refuses
        self.source.meanwhile, self.source.refuses = _nothing, False

    def deny(self, meanwhile: Callable[[], None] = _nothing) -> None:
        """The rules of access have changed: nobody may ask."""
        self.source.denies, self.source.meanwhile = True, meanwhile
        self.service.ask_again()
        self.source.denies, self.source.meanwhile = False, _nothing

    def cancel(self) -> None:
        for _, number in list(self.service._open):
            self.service.cancel("s", number)

    def bring(self, count: int = 1, state: str = "running") -> None:
        for results in self.source.opened:
            if results.state == "running":
                results.ahead += itertools.islice(results.made, count)
                results.state = state
                results.wake()

    def turn(self) -> None:
        self.thread.turn()

    def wait(self) -> None:
        self.thread.now += 2.0

    def close(self) -> None:
        self.session.close(Cause.SHUTDOWN)
        self.is_closed = True

    def stop(self) -> None:
        self.thread.stop(0.0)
        self.service.stop(0.0)

    def stop_at_next_look(self) -> None:
        for results in self.source.opened:
            results.before = self.stop

    def take(self) -> None:
        """The subscriber reads what goes out, and consumes it."""
        while items := self.session._take(500, 1 << 20):
            for parts in items:
                data = b"".join(map(bytes, parts))
                kind, number = ITEM.unpack_from(data)
                assert number not in self.ended, "the end comes last, and once"
                if kind == FINISHED:
                    self.ended[number] = msgspec.msgpack.decode(data[ITEM.size :], type=QueryEnd).state
                else:
                    assert kind == PLACED
                    self.found.setdefault(number, []).append(POSITION.unpack_from(data, ITEM.size)[0])
            heard = Heard({number: len(found) for number, found in self.found.items()})
            self.session._acked(len(items), msgspec.msgpack.encode(heard))

    def lead(self, step: str) -> None:
        """A step of `LIVES`."""
        what, _, meanwhile = step.partition(" while ")
        name, _, how = what.partition(" ")

        def others() -> None:
            for each in meanwhile.split():
                self.lead(each)

        match name:
            case "ask":
                self.ask(others, refuses=how == "refused", timeout=1.0 if how == "shortly" else 0.0)
            case "deny":
                self.deny(others)
            case "bring":
                self.bring(2, how or "running")
            case "finish":
                self.bring(0, "finished")
            case _:
                getattr(self, name)()

    def check(self) -> None:
        """Whoever is open is known, and nobody else."""
        assert not any(query.state is QueryState.CLOSED for query in self.service._open.values())
        assert self.contracts.count == len(self.service._open)
        assert self.service.status()["open"] == len(self.service._open)
        for found in self.found.values():
            assert found == sorted(set(found)), "in order, and once"

    def end(self) -> None:
        """Whatever has happened: when nothing comes any more and the subscriber reads, nothing is left."""
        self.bring(0, "finished")
        for _ in range(2 + sum(len(each.ahead) for each in self.source.opened)):
            self.turn()
            self.take()
        if self.thread.is_stopping:
            self.service.stop(0.0)
        self.turn()
        self.check()
        assert not self.service._open
        assert not self.session._queues
        assert all(results.is_cancelled for results in self.source.opened)
        assert self.contracts.count == self.budget.used == 0
        assert not self.contracts.quota._taken
        if not self.is_over:
            assert self.ended.keys() >= self.found.keys(), "each is told its end"


LIVES = (
    "ask refused",
    "ask, bring, turn, take, bring finished",
    "ask, cancel, cancel, turn, take",
    "ask, bring, turn, cancel, close, turn",
    "ask, bring finished, turn, cancel, turn, take",
    "ask, close, turn",
    "ask shortly, bring, wait, turn",
    "ask, bring, deny, turn",
    "ask while deny",
    "ask while deny turn",
    "ask while close turn",
    "ask refused while close turn",
    "ask, deny while close turn",
    "ask, finish, stop_at_next_look, turn",
)
"""Lives of a query that walk all rows of the table; `while`: before the archive has answered, or the rules have."""


def test_lives_walk_every_row_of_the_table(walked_rows: Any) -> None:
    # When each of these lives is led
    for text in LIVES:
        life = Life()
        for step in text.split(", "):
            life.lead(step)
            life.check()
        # Expect nothing to be left of it
        life.end()
    # Expect no row to be left that nothing leads to
    assert walked_rows.left(QUERY) == set()


@pytest.mark.parametrize(
    ("text", "outcome"),
    [("cancel", "cancelled"), ("wait", "timed_out"), ("deny", "failed"), ("cancel, deny", "cancelled")],
)
def test_the_first_who_ends_a_query_is_told_of(text: str, outcome: str) -> None:
    life = Life()
    for step in ("ask shortly", "bring", *text.split(", "), "turn", "take"):
        life.lead(step)
    assert list(life.ended.values()) == [outcome]
    assert life.service.status()["ended"] == {}, "its end is on its way"
    life.end()
    assert life.service.status()["ended"] == {outcome: 1}


def test_a_query_has_the_contract_that_it_was_granted_whoever_answers() -> None:
    life = Life()
    life.contracts.contract = Contract(Settings(deadline=1.0, importance=3.0))
    life.lead("ask")
    (query,) = life.service._open.values()
    contract = query.subscription.contract
    assert contract is not None
    assert (contract.settings.importance, contract.settings.deadline) == (3.0, None), "nothing of it is late"
    life.end()


def test_whoever_sees_that_a_query_is_to_end_sees_how(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given the thread of feeds, which takes turns at any moment of a change of state
    life = Life()
    seen: list[str] = []

    def change(query: Any, name: str, value: Any) -> None:
        object.__setattr__(query, name, value)
        if name == "state" and value in (QueryState.ENDING, QueryState.FINISHED):
            seen.append(query._outcome.state)

    monkeypatch.setattr(ArchiveQuery, "__setattr__", change, raising=False)
    life.lead("ask")
    # When a query is cancelled, and ends
    for step in ("cancel", "turn", "take"):
        life.lead(step)
    # Then it was never seen as one that runs on
    assert seen == ["cancelled", "cancelled"]
    life.end()


EVENTS = st.lists(st.sampled_from(["deny", "turn", "take", "cancel", "close", "wait"]), max_size=3)


class QueryLives(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    @initialize()
    def begin(self) -> None:
        self.life = Life()

    @precondition(lambda self: not self.life.is_over and len(self.life.service._open) < 8)
    @rule(how=st.sampled_from(["", " refused", " shortly"]), meanwhile=EVENTS)
    def ask(self, how: str, meanwhile: list[str]) -> None:
        self.life.lead(f"ask{how} while {' '.join(meanwhile)}")

    @rule(step=st.sampled_from(["cancel", "turn", "take", "wait", "close", "stop", "stop_at_next_look"]))
    def happen(self, step: str) -> None:
        self.life.lead(step)

    @rule(meanwhile=EVENTS)
    def deny(self, meanwhile: list[str]) -> None:
        self.life.lead(f"deny while {' '.join(meanwhile)}")

    @rule(count=st.integers(0, 5), state=st.sampled_from(["running", "running", "finished", "failed"]))
    def bring(self, count: int, state: str) -> None:
        self.life.bring(count, state)

    @invariant()
    def is_in_step(self) -> None:
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


TestQueryLives = QueryLives.TestCase
