"""Subscriptions at a delegate lead random lives: the session's records stay in step with what the delegate has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    ConfigurationError,
    JbiError,
    UnknownLeaseError,
    UnknownUidError,
    WireTimeoutError,
    report,
)
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.replies import Granted, Opened, Subscribed
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.remote import REMOTE_SUBSCRIPTION, RemoteState
from jbi_pubsub.subscriber.session import DelegateSession
from jbi_pubsub.subscriber.subscription import LocalSubscription

POOL = ListenerPool("test")


class _Renewals:
    """Stands for the renewal manager: `ended` has what is called when a lease ends."""

    def __init__(self) -> None:
        self.ended: dict[str, Callable[[JbiError], None]] = {}

    def manage(self, key: Any, _duration: float, _renew: Any, ended: Callable[[JbiError], None], **_named: Any) -> None:
        self.ended[key[1]] = ended

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
        self.meanwhile: Callable[[], None] | None = None

    def _next(self) -> str:
        return self.answers.pop() if self.answers else "yes"

    def forget(self) -> None:
        """The session ends; mail stays."""
        self.stands = {uid: (right, at) for uid, (right, at) in self.stands.items() if right != self.session}
        self.session = ""

    def open(self, *_given: Any) -> Opened:
        if self._next() == "silent":
            raise WireTimeoutError("no answer")
        self.forget()
        self.opened += 1
        self.session = f"session-{self.opened}"
        return Opened(self.session, Lease(f"lease-of-{self.session}", 30.0), server="delegate")

    def subscribe(self, session_id: str, requests: Any, *_given: Any) -> tuple[Subscribed, ...]:
        how = self._next()
        if how == "deaf":
            raise WireTimeoutError("not heard")
        answers = tuple(self._answer(session_id, request, self._next()) for request in requests)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if how == "silent":
            raise WireTimeoutError("no answer")
        return answers

    def _answer(self, session_id: str, request: SubscriptionRequest, how: str) -> Subscribed:
        if how == "no" or (request.direct and session_id != (self.session or None)):
            return Subscribed(error=report(ConfigurationError("no")))
        right, number = self.stands.get(request.uid, ("", 0))
        if not number:
            self.number = number = self.number + 1
            right = self.session if request.direct else f"lease-{number}"
            self.stands[request.uid] = right, number
        lease = None if request.direct else Lease(right, 30.0)
        return Subscribed(granted=Granted(number, lease))

    def unsubscribe(self, right: str, uid: str) -> None:
        if self._next() == "silent":
            raise WireTimeoutError("no answer")
        if self.stands.get(uid, ("", 0))[0] != right:
            raise UnknownUidError("not here")
        del self.stands[uid]

    def mail_losses(self, _leases: Any) -> dict[str, Any]:
        return {}


ANSWERS = st.lists(st.sampled_from(["yes", "yes", "no", "silent", "deaf"]), max_size=4)


@settings(max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
class Lives(RuleBasedStateMachine):
    """A session whose thread does not run: what it does the machine does."""

    @initialize()
    def begin(self) -> None:
        self.delegate, self.renewals = _Delegate(), _Renewals()
        self.session = DelegateSession(
            ServiceRef("delegate", "subscriptions", ("127.0.0.1:1",)), Config(), self.renewals,  # type: ignore[arg-type]
            name="test", is_listed=lambda _uid: True, ended=lambda _session: None,
        )  # fmt: skip
        self.session.link.close()
        self.session.link.proxy = self.delegate  # type: ignore[assignment]
        self.wanted: dict[str, LocalSubscription] = {}
        self.made = 0

    @rule(direct=st.booleans())
    def want(self, direct: bool) -> None:
        self.made += 1
        recipients = () if direct else ("a@example.org",)
        request = SubscriptionRequest(f"s{self.made}", direct=direct, recipients=recipients)
        subscription = self.wanted[request.uid] = LocalSubscription(request, None, POOL)
        self.session.want(subscription)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), answers=ANSWERS)
    def unwant(self, data: st.DataObject, answers: list[str]) -> None:
        self.delegate.answers = answers
        uid = data.draw(st.sampled_from(sorted(self.wanted)))
        self.wanted.pop(uid)
        self.session.registry.unwant(uid)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), is_awaited=st.booleans())
    def amend(self, data: st.DataObject, is_awaited: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.wanted)))
        local = self.wanted[uid]
        local.amend(msgspec.structs.replace(local.request, predicate="//x"), is_awaited=is_awaited)
        self.session.registry.amend(uid)

    @rule(answers=ANSWERS, meanwhile=st.sampled_from(["nothing", "nothing", "unwant", "lose", "amend"]), data=st.data())
    def turn(self, answers: list[str], meanwhile: str, data: st.DataObject) -> None:
        uids = sorted(self.wanted)
        if meanwhile == "lose":
            self.delegate.meanwhile = lambda: self.lose(is_told=False)
        elif uids and meanwhile != "nothing":
            uid = data.draw(st.sampled_from(uids))
            self.delegate.meanwhile = lambda: (self.wanted.pop(uid), self.session.registry.unwant(uid))[1]
            if meanwhile == "amend":
                self.delegate.meanwhile = lambda: (self.wanted[uid].amend(
                    self.wanted[uid].request, is_awaited=True), self.session.registry.amend(uid))[1]  # fmt: skip
        self.delegate.answers = answers
        self._turn()
        self.delegate.answers, self.delegate.meanwhile = [], None

    def _turn(self) -> None:
        try:
            self.session._open_if_needed()
            self.session._reconcile()
        except (UnknownUidError, UnknownLeaseError) as exc:
            self.session._lose_session(exc)
        except WireTimeoutError:
            pass

    @rule(is_told=st.booleans())
    def lose(self, is_told: bool) -> None:
        self.session.link.is_parted = is_told
        self.delegate.forget()
        self.session._lose_session(UnknownLeaseError("unknown"))

    @precondition(lambda self: self.session.flows.by_number)
    @rule(data=st.data())
    def expel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.session.flows.by_number)))
        self.delegate.stands.pop(self.session.flows.by_number[number].subscription.uid, None)
        self.session.expel(number)

    @precondition(lambda self: any(not key.startswith("session") for key in self.renewals.ended))
    @rule(data=st.data())
    def lapse(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(key for key in self.renewals.ended if not key.startswith("session"))))
        self.delegate.stands.pop(uid, None)
        self.renewals.ended[uid](UnknownLeaseError("unknown"))

    @rule()
    def try_the_refused_again(self) -> None:
        self.session.registry.ask_at = 0.0

    @invariant()
    def flows_are_those_of_what_stands(self) -> None:
        standing = {flow.number: flow for flow in self.session.registry.remotes.standing()}
        assert self.session.flows.by_number == standing

    @invariant()
    def records_are_kept_of_what_is_wanted_or_has_to_end(self) -> None:
        records = {each.subscription.uid: each for each in self.session.registry.remotes}
        assert {uid for uid, each in records.items() if each.is_wanted} == set(self.wanted)
        assert not any(REMOTE_SUBSCRIPTION.is_final(each.state) for each in records.values())
        assert all(
            (each.flow is not None) == (each.stands or each.state is RemoteState.LOST) for each in records.values()
        )

    def teardown(self) -> None:
        """When the delegate answers well from now on, it has what is wanted, by the last terms, and nothing else."""
        if not hasattr(self, "session"):
            return
        for _ in range(3):
            self.session.registry.ask_at = 0.0
            self._turn()
        assert set(self.delegate.stands) == set(self.wanted)
        assert all(self.session.stands(uid) and self.session.registry.has_amended(uid) for uid in self.wanted)
        assert set(self.renewals.ended) >= {uid for uid, each in self.wanted.items() if not each.request.direct}


TestLives = Lives.TestCase
