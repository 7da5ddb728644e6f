"""Subscriptions at a delegate lead chosen and random lives: the session's records stay in step with what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from extent import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    JbiError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
    report,
)
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.deliveries import END, ITEM
from jbi_pubsub.protocol.replies import Grant, OpenReply, SubscribeReply
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.remote import REMOTE_SUBSCRIPTION, RemoteState
from jbi_pubsub.subscriber.session import DelegateSession
from jbi_pubsub.subscriber.subscription import LocalSubscription
from jbi_pubsub.subscriber.watches import TemplateWatches

POOL = ListenerPool("test")


def _nothing() -> None:
    pass


class _Renewals:
    """Stands for the renewal manager: `ended` has what is called when a lease ends."""

    def __init__(self) -> None:
        self.ended: dict[str, Callable[[JbiError], None]] = {}

    def manage(self, key: Any, _duration: float, _renew: Any, ended: Callable[[JbiError], None], **_named: Any) -> None:
        self.ended[key[1]] = ended

    def hasten(self, key: Any) -> None:
        pass

    def remove(self, key: Any) -> None:
        self.ended.pop(key[1], None)


class _Delegate:
    """Stands for a delegate: what it has by which right, and how it answers next."""

    opened_at = 0.0

    def __init__(self) -> None:
        self.session = ""
        self.stands: dict[str, tuple[str, int]] = {}
        """The right to it and its number, by id."""
        self.number = self.opened = 0
        self.answers: list[str] = []
        self.before: Callable[[], None] = _nothing
        """Called when the next call has come, before it is done; `meanwhile`: when it is done, before the answer."""
        self.meanwhile: Callable[[], None] = _nothing

    def _next(self) -> str:
        return self.answers.pop() if self.answers else "yes"

    def forget(self) -> None:
        """The session ends; mail stays."""
        self.stands = {uid: (right, at) for uid, (right, at) in self.stands.items() if right != self.session}
        self.session = ""

    def open(self, *_given: Any) -> OpenReply:
        match self._next():
            case "silent":
                raise WireTimeoutError("no answer")
            case "denied":
                raise AccessDeniedError("denied")
        self.forget()
        self.opened += 1
        self.session = f"session-{self.opened}"
        return OpenReply(self.session, Lease(f"lease-of-{self.session}", 30.0), server="delegate")

    def subscribe(self, session_id: str, requests: Any, *_given: Any) -> tuple[SubscribeReply, ...]:
        how = self._next()
        if how == "deaf":
            raise WireTimeoutError("not heard")
        if how == "denied":
            raise AccessDeniedError("denied")
        before, self.before = self.before, _nothing
        before()
        answers = tuple(self._answer(session_id, request, self._next()) for request in requests)
        meanwhile, self.meanwhile = self.meanwhile, _nothing
        meanwhile()
        if how == "silent":
            raise WireTimeoutError("no answer")
        return answers

    def _answer(self, session_id: str, request: SubscriptionRequest, how: str) -> SubscribeReply:
        if how == "no" or (request.direct and session_id != (self.session or None)):
            return SubscribeReply(error=report(ConfigurationError("no")))
        right, number = self.stands.get(request.uid, ("", 0))
        if not number:
            self.number = number = self.number + 1
            right = self.session if request.direct else f"lease-{number}"
            self.stands[request.uid] = right, number
        lease = None if request.direct else Lease(right, 30.0)
        return SubscribeReply(granted=Grant(number, lease))

    def unsubscribe(self, right: str, uid: str) -> None:
        if self._next() == "silent":
            raise WireTimeoutError("no answer")
        if self.stands.get(uid, ("", 0))[0] != right:
            raise UnknownUidError("not here")
        del self.stands[uid]

    def mail_losses(self, _leases: Any) -> dict[str, Any]:
        return {}


ANSWERS = st.lists(st.sampled_from(["yes", "yes", "no", "silent", "deaf", "denied"]), max_size=4)
EVENTS = st.lists(st.sampled_from(["unwant", "want again", "lose", "part", "amend", "expel", "lapse"]), max_size=2)


class Life:
    """A session whose thread does not run: what it does is done here."""

    def __init__(self) -> None:
        self.delegate, self.renewals = _Delegate(), _Renewals()
        self.session = DelegateSession(
            ServiceRef("delegate", "subscriptions", ("127.0.0.1:1",)), Config(), self.renewals,  # type: ignore[arg-type]
            name="test", watches=TemplateWatches(None, None, None),  # type: ignore[arg-type]
            ended=lambda _session: None,
        )  # fmt: skip
        self.session.link.close()
        self.session.link.proxy = self.delegate  # type: ignore[assignment]
        self.wanted: dict[str, LocalSubscription] = {}
        self.is_refused = False
        """Whether the thread waits, as the session was refused."""

    def want(self, uid: str, *, direct: bool = True) -> None:
        recipients = () if direct else ("a@example.org",)
        self.wanted[uid] = LocalSubscription(SubscriptionRequest(uid, direct=direct, recipients=recipients), None, POOL)
        self.session.want(self.wanted[uid])

    def unwant(self, uid: str) -> None:
        self.session.registry.unwant(self.wanted.pop(uid))

    def want_again(self, uid: str) -> None:
        """As of a durable one that is cancelled and begins anew."""
        direct = self.wanted[uid].request.direct
        self.unwant(uid)
        self.want(uid, direct=direct)

    def amend(self, uid: str, *, is_awaited: bool = True) -> None:
        local = self.wanted[uid]
        local.terms.amend(msgspec.structs.replace(local.request, predicate="//x"), is_awaited=is_awaited)
        self.session.registry.amend(uid)

    def lose(self, *, is_told: bool = False) -> None:
        self.session.link.is_parted = is_told
        self.delegate.forget()
        self.session._lose_session(UnknownLeaseError("unknown"))

    def expel(self, uid: str) -> None:
        flow = next((each for each in self.session.flows.by_number.values() if each.subscription.uid == uid), None)
        if flow is not None:
            self.delegate.stands.pop(uid, None)
            self.session.reader.take_batch([memoryview(ITEM.pack(END, flow.number))])

    def lapse(self, uid: str) -> None:
        ended = self.renewals.ended.get(uid)
        if ended is not None:
            self.delegate.stands.pop(uid, None)
            ended(UnknownLeaseError("unknown"))

    def happen_all(self, todo: Iterable[tuple[str, str]]) -> None:
        """Events and subscriptions, in that order."""
        for what, uid in todo:
            if what in ("lose", "part"):
                self.lose(is_told=what == "part")
            elif what and uid in self.wanted:
                getattr(self, what.replace(" ", "_"))(uid)

    def turn(
        self, answers: str = "", meanwhile: Iterable[tuple[str, str]] = (), before: Iterable[tuple[str, str]] = ()
    ) -> None:
        """What the session's thread does in a turn. `answers`: the delegate's, one after the other; `before` it has
        asked for subscriptions there, and `meanwhile`: until their answer has come, happens what these say."""
        self.delegate.answers = answers.split()[::-1]
        self.delegate.before = lambda: self.happen_all(before)
        self.delegate.meanwhile = lambda: self.happen_all(meanwhile)
        try:
            if self.is_refused:
                self.is_refused = False
                self.session.registry.retry_all()
            self.session._open_if_needed()
            self.session._reconcile()
        except (UnknownUidError, UnknownLeaseError) as exc:
            self.session._lose_session(exc)
        except AccessDeniedError as exc:
            self.session.registry.refuse_all(exc)
            self.is_refused = True
        except WireError:
            pass
        self.delegate.answers, self.delegate.before, self.delegate.meanwhile = [], _nothing, _nothing

    def lead(self, step: str) -> None:
        """A step of `LIVES`, with the subscription "s"."""
        what, _, meanwhile = step.partition(" while ")
        what, _, before = what.partition(" after ")
        name, _, how = what.partition(" ")
        match name:
            case "turn":
                told = [[(each, "s") for each in events.split()] for events in (meanwhile, before)]
                self.turn(how, *told)
            case "want":
                self.want("s", direct=not how)
            case "amend":
                self.amend("s", is_awaited=not how)
            case _:
                self.happen_all([(name, "s")])

    def try_the_refused_again(self) -> None:
        self.session.registry.ask_at = 0.0

    def check(self) -> None:
        """The records are those of what is wanted, or has to end; the flows those of what stands."""
        remotes = self.session.registry.remotes
        records = {each.subscription.uid: each for each in remotes}
        assert {uid: each.subscription for uid, each in records.items() if each.is_wanted} == self.wanted
        assert not any(REMOTE_SUBSCRIPTION.is_final(each.state) for each in records.values())
        assert all(
            (each.flow is not None) == (each.stands or each.state is RemoteState.LOST) for each in records.values()
        )
        assert self.session.flows.by_number == {flow.number: flow for flow in remotes.standing()}

    def end(self) -> None:
        """When the delegate answers well from now on, it has what is wanted, by the last terms, and nothing else."""
        for _ in range(3):
            for uid in [uid for uid in self.renewals.ended if uid in self.wanted and uid not in self.delegate.stands]:
                self.lapse(uid)
            self.try_the_refused_again()
            self.turn()
            self.check()
        assert set(self.delegate.stands) == set(self.wanted)
        assert all(self.session.stands(uid) and self.session.registry.has_amended(uid) for uid in self.wanted)
        numbers = {uid: number for uid, (_, number) in self.delegate.stands.items()}
        assert numbers == {flow.subscription.uid: number for number, flow in self.session.flows.by_number.items()}
        assert set(self.renewals.ended) >= {uid for uid, each in self.wanted.items() if not each.request.direct}
        assert not self.session.registry.remotes.to_cancel


LIVES = (
    "want, unwant",
    "want, turn, unwant",
    "want, turn denied",
    "want, turn yes yes no, unwant",
    "want, turn yes deaf, turn",
    "want, turn yes silent, unwant",
    "want, turn yes deaf, lose",
    "want, turn while unwant",
    "want, turn yes yes no while unwant",
    "want, turn yes silent while unwant, turn",
    "want, turn yes silent while unwant, lose",
    "want, turn while lose",
    "want, turn, amend, turn",
    "want, turn, amend, turn yes no",
    "want, turn, amend unawaited, turn yes no",
    "want, turn, amend, turn deaf, turn",
    "want, turn, amend, turn while unwant",
    "want, turn, amend, turn while lose",
    "want, turn, amend, turn while expel",
    "want, turn, amend, turn after expel",
    "want, turn, amend, turn yes yes silent after expel while unwant",
    "want, turn, amend, turn yes yes silent after expel unwant",
    "want, turn, amend, turn yes yes silent while expel unwant",
    "want, turn, amend, turn silent yes after expel while unwant, turn yes yes silent",
    "want by mail, turn, amend, turn while lapse",
    "want by mail, turn, lapse",
    "want by mail, turn silent, turn denied, unwant",
    "want, turn, lose",
    "want, turn, lose, unwant",
    "want, turn, lose, turn denied",
    "want, turn, expel",
)
"""Lives of one subscription that walk all rows of the table: what happens, after what the delegate is asked for it, and
what happens until its answer has come. The answers are those to the session, to the call, to the subscription, and to
cancellations."""


def test_lives_walk_every_row_of_the_table(walked_rows: Any) -> None:
    # When each of these lives is led
    for text in LIVES:
        life = Life()
        for step in text.split(", "):
            life.lead(step)
            life.check()
        # Expect it to end well
        life.end()
    # Expect no row to be left that nothing leads to
    assert walked_rows.left(REMOTE_SUBSCRIPTION) == set()


def test_mail_that_may_stand_is_told_that_it_is_refused_and_ends_when_it_is_cancelled() -> None:
    # Given a subscription by mail, whose answer was lost
    life = Life()
    life.lead("want by mail")
    life.lead("turn silent")
    subscription = life.wanted["s"]
    # When the delegate refuses whoever asks, twice
    life.lead("turn denied")
    life.lead("turn denied")
    # Expect that to be said once
    assert subscription.losses.by_cause[Cause.REFUSED] == 1
    # Expect the delegate not to keep it for good
    life.lead("unwant")
    life.end()
    assert life.delegate.stands == {}


def test_who_begins_anew_before_the_former_one_is_cancelled_here_stands_alone() -> None:
    # Given a durable subscription that stands, and one thread that is about to cancel it
    life = Life()
    life.lead("want")
    life.lead("turn")
    former = life.wanted["s"]
    # When another thread has it begin anew, and the first one goes on
    life.lead("want")
    life.session.registry.unwant(former)
    # Expect the new one to stand, under a number of its own
    life.end()
    assert life.delegate.stands["s"][1] == 2
    # Expect it to be cancelled as any other
    life.lead("unwant")
    life.end()


def test_a_cancellation_that_is_on_its_way_does_not_end_who_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a durable subscription that stands
    life = Life()
    life.lead("want")
    life.lead("turn")
    unsubscribe = life.delegate.unsubscribe

    def late(right: str, uid: str) -> None:
        monkeypatch.setattr(life.delegate, "unsubscribe", unsubscribe)
        life.lead("want")
        life.turn()
        unsubscribe(right, uid)

    monkeypatch.setattr(life.delegate, "unsubscribe", late)
    # When it begins anew, and the session's thread takes a turn, before the delegate hears of its cancellation
    life.lead("unwant")
    # Expect the new one to stand
    life.end()
    assert life.delegate.stands["s"][1] == 2


@settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
class Lives(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    @initialize()
    def begin(self) -> None:
        self.life = Life()
        self.made = 0

    def _uid(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.life.wanted) or [""]))

    @rule(direct=st.booleans())
    def want(self, direct: bool) -> None:
        self.made += 1
        self.life.want(f"s{self.made}", direct=direct)

    @precondition(lambda self: self.life.wanted)
    @rule(data=st.data(), answers=ANSWERS, is_again=st.booleans())
    def unwant(self, data: st.DataObject, answers: list[str], is_again: bool) -> None:
        self.life.delegate.answers = answers
        (self.life.want_again if is_again else self.life.unwant)(self._uid(data))

    @precondition(lambda self: self.life.wanted)
    @rule(data=st.data(), is_awaited=st.booleans())
    def amend(self, data: st.DataObject, is_awaited: bool) -> None:
        self.life.amend(self._uid(data), is_awaited=is_awaited)

    @rule(answers=ANSWERS, meanwhile=EVENTS, before=EVENTS, data=st.data())
    def turn(self, answers: list[str], meanwhile: list[str], before: list[str], data: st.DataObject) -> None:
        told = [[(each, self._uid(data)) for each in events] for events in (meanwhile, before)]
        self.life.turn(" ".join(answers), *told)

    @rule(is_told=st.booleans())
    def lose(self, is_told: bool) -> None:
        self.life.lose(is_told=is_told)

    @precondition(lambda self: self.life.wanted)
    @rule(data=st.data(), is_lapse=st.booleans())
    def end_there(self, data: st.DataObject, is_lapse: bool) -> None:
        (self.life.lapse if is_lapse else self.life.expel)(self._uid(data))

    @rule()
    def try_the_refused_again(self) -> None:
        self.life.try_the_refused_again()

    @invariant()
    def is_in_step(self) -> None:
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


TestLives = Lives.TestCase
