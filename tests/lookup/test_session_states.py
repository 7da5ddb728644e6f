"""The states of a session at a lookup service, and of its watch, against what random lives of both should lead to."""

from __future__ import annotations

from contextlib import suppress
from unittest import mock

from extent import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jbi_pubsub.core.errors import JbiError, WireTimeoutError
from jbi_pubsub.lookup.client import session as session_module
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.session import RegistrarSession
from jbi_pubsub.lookup.client.states import LinkState, WatchState
from jbi_pubsub.lookup.item import ServiceTemplate
from tests.lookup.test_registrar_session import Desk, a_session, printer

NUMBERS = st.integers(0, 4)


class Lives(RuleBasedStateMachine):
    """A session, whose thread is the machine; others register and cancel, links fail, events are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self._patches = (
            mock.patch.object(session_module, "RegistrarProxy", return_value=self.desk),
            mock.patch.object(session_module, "time", self.desk),
            mock.patch.object(RegistrarSession, "_open_events"),
        )
        for patch in self._patches:
            patch.start()
        self.session = a_session()
        self.watcher = LookupCache(ServiceTemplate(types=("Printer",)))
        self.session.want({}, {id(self.watcher): self.watcher})
        self.others: dict[int, str] = {}
        """Leases of what others have registered."""
        self.link = LinkState.UNTRIED
        self.is_current = False
        """Whether the watcher has seen all that there is."""

    @initialize()
    def begins(self) -> None:
        assert self.session.state is LinkState.UNTRIED

    def teardown(self) -> None:
        for patch in self._patches:
            patch.stop()

    # -- what happens -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.link in (LinkState.UNTRIED, LinkState.AWAY))
    @rule()
    def answers(self) -> None:
        self.session._connect()
        self.link, self.is_current = LinkState.CONNECTED, False

    @precondition(lambda self: self.link is not LinkState.LEFT)
    @rule()
    def fails(self) -> None:
        self.session._fail()
        self.link = LinkState.AWAY

    @rule()
    def leaves(self) -> None:
        self.session.leave()
        self.link = LinkState.LEFT

    @rule()
    def fails_after_it_has_left(self) -> None:
        if self.link is LinkState.LEFT:
            self.session._fail()

    @precondition(lambda self: self.link is LinkState.CONNECTED)
    @rule()
    def works(self) -> None:
        self.session._reconcile()
        self.is_current = True

    @precondition(lambda self: self.link is LinkState.CONNECTED and not self.is_current)
    @rule()
    def a_lookup_fails_in_the_middle(self) -> None:
        def fail(name: str) -> None:
            if name == "lookup":
                raise WireTimeoutError("no answer")

        self.desk.before.append(fail)
        with suppress(JbiError):
            self.session._reconcile()
        self.desk.before.clear()
        self.fails()

    @precondition(lambda self: self.link is LinkState.CONNECTED and not self.is_current)
    @rule(number=NUMBERS)
    def events_are_lost_while_it_looks(self, number: int) -> None:
        def lose(name: str) -> None:
            if name == "lookup":
                self.desk.before.clear()
                self._register(number)
                self.session._look_again()

        self.desk.before.append(lose)
        self.session._reconcile()
        self.desk.before.clear()

    @precondition(lambda self: self.link is LinkState.CONNECTED and not self.is_current)
    @rule(number=NUMBERS)
    def an_event_comes_while_it_looks(self, number: int) -> None:
        def tell(name: str) -> None:
            if name == "lookup":
                self.desk.before.clear()
                self._register(number)

        self.desk.before.append(tell)
        self.session._reconcile()
        self.desk.before.clear()
        self.is_current = self.session.watches(self.watcher)

    @rule()
    def events_are_lost(self) -> None:
        self.session._look_again()
        self.is_current = False

    @rule(number=NUMBERS)
    def another_registers(self, number: int) -> None:
        self._register(number)

    @rule(number=NUMBERS)
    def another_cancels(self, number: int) -> None:
        if number in self.others:
            outcome = self.desk.registrar.cancel_all([self.others.pop(number)], self.desk.now)
            self._tell(outcome)

    def _register(self, number: int) -> None:
        outcome = self.desk.registrar.register(printer(number), 1e6, self.desk.now)
        self.others[number] = outcome.result.lease_id
        self._tell(outcome)

    def _tell(self, outcome: object) -> None:
        """Events come as long as it is connected; else they are missed."""
        for _, event in outcome.events:  # type: ignore[attr-defined]
            if self.link is LinkState.CONNECTED:
                self.session._dispatch(event)
            else:
                self.is_current = False

    # -- what holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_link_is_as_it_should_be(self) -> None:
        assert self.session.state is self.link
        assert self.session.connected == (self.link is LinkState.CONNECTED)
        assert self.session.has_left == (self.link is LinkState.LEFT)
        assert (self.session.away_since is not None) >= (self.link is LinkState.AWAY)

    @invariant()
    def a_watch_is_current_when_all_has_been_seen(self) -> None:
        states = [watched.state for watched in self.session._watched.values()]
        assert set(states) <= {WatchState.STALE, WatchState.CURRENT}, "no lookup is under way"
        if self.link is LinkState.CONNECTED and self.is_current:
            assert self.session.watches(self.watcher)
            seen = {item.service_id for item in self.watcher.items()}
            assert seen == {f"printer-{number}" for number in self.others}


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
