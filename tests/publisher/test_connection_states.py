"""A publisher's connection leads chosen and random lives: whatever its delegates do, nothing is lost, or sent twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from types import SimpleNamespace
from typing import Any
from unittest import mock

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
    DelegateNotFoundError,
    JbiError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.publications import PUBLICATION
from jbi_pubsub.protocol.replies import OpenReply, Registered, Taken
from jbi_pubsub.publisher import connection as connection_module
from jbi_pubsub.publisher import registrations as registrations_module
from jbi_pubsub.publisher.connection import ConnectionReports, DelegateConnection
from jbi_pubsub.publisher.publication import PublisherTerms
from jbi_pubsub.publisher.states import CONNECTION, REMOTE_REGISTRATION, SILENT

ERRORS: dict[str, type[JbiError]] = {
    "deaf": WireTimeoutError, "no": ConfigurationError, "full": JbiError, "denied": AccessDeniedError,
}  # fmt: skip
"""Answers that mean that nothing was done."""


def _nothing() -> None:
    pass


class _Publication:
    """Stands for a registration: its objects have their numbers alone."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.number = 0
        self.sequence = 0
        self.terms = PublisherTerms()
        self.renewed = False

    def request(self) -> str:
        self.renewed = False
        return self.uid

    def is_renewed(self) -> bool:
        return self.renewed

    def renew_again(self) -> None:
        self.renewed = True

    def next_object(self) -> Parcel:
        sequence = self.sequence + 1
        return Parcel(Head("", self.uid, sequence, 0.0, "", "", b"", 0), (sequence.to_bytes(8, "big"),), 8, 0.0)


class _Delegate:
    """Stands for the delegates, of which one answers at a time: what that has, and how it answers next."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.sessions: dict[str, dict[str, int]] = {}
        """Numbers of the registrations, by session and id."""
        self.positions: dict[str, int] = {}
        """Items taken on the data connection of a session."""
        self.waiting: list[tuple[str, int]] = []
        """Objects taken and not done yet, with credit: they end with the delegate."""
        self.last: dict[tuple[str, int], int] = {}
        """The last object taken in a session of the registration of that number."""
        self.done: dict[str, int] = {}
        """The last object of a registration that its subscribers have."""
        self.opened = 0
        self.answers: list[str] = []
        self.before: Callable[[], None] = _nothing
        """Called when the next call has come, before it is done; `meanwhile`: behind that."""
        self.meanwhile: Callable[[], None] = _nothing
        self.is_there = True
        self.takes = 1_000
        """Items that it takes before the line is cut; of these it tells that it has taken `acknowledges`."""
        self.acknowledges = 1_000
        self.line_error: JbiError = WireError("cut")

    def restart(self) -> None:
        """It ends, and another one takes its place."""
        self.sessions.clear()
        self.positions.clear()
        self.waiting.clear()

    def answer(self, call: Callable[[], Any], session: str = "") -> Any:
        how = self.answers.pop() if self.answers else "yes"
        if how in ERRORS:
            raise ERRORS[how](how)
        if session and session not in self.sessions:
            raise UnknownUidError("not here")
        result = call()
        if how == "silent":
            raise WireTimeoutError("no answer")
        return result

    def hooked(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def call_hooks() -> Any:
            before, self.before = self.before, _nothing
            before()
            result = call()
            meanwhile, self.meanwhile = self.meanwhile, _nothing
            meanwhile()
            return result

        return call_hooks

    # -- as the proxy has it ------------------------------------------------------------------------------------

    def connect(self, *_given: Any) -> OpenReply:
        def open_() -> OpenReply:
            self.opened += 1
            uid = f"session-{self.opened}"
            self.sessions[uid], self.positions[uid] = {}, 0
            return OpenReply(uid, Lease(f"lease-of-{uid}", 30.0))

        opened: OpenReply = self.answer(open_)
        return opened

    def disconnect(self, session: str, _timeout: float | None = None) -> None:
        self.sessions.pop(session, None)

    def close(self) -> None:
        pass

    def register(self, session: str, _request: Any, uid: str, number: int) -> Registered:
        def make() -> Registered:
            if session not in self.sessions:
                raise UnknownUidError("not here")
            self.sessions[session][uid] = number
            return Registered(credit=self.credit, credit_bytes=1 << 20)

        granted: Registered = self.answer(self.hooked(make), session)
        return granted

    def unregister(self, session: str, uid: str) -> None:
        def end() -> None:
            if self.sessions.get(session, {}).pop(uid, None) is None:
                raise UnknownUidError("not here")

        self.answer(self.hooked(end), session)

    def renew(self, lease_id: str, duration: float) -> Lease:
        if not self.is_there:
            raise WireTimeoutError("no answer")
        if lease_id.removeprefix("lease-of-") not in self.sessions:
            raise UnknownLeaseError("not here")
        return Lease(lease_id, duration)

    def open_publications(self, session: str) -> str:
        if not self.is_there:
            raise WireTimeoutError("no answer")
        return str(self.answer(self.hooked(lambda: session), session))

    # -- objects ------------------------------------------------------------------------------------------------

    def take_item(self, session: str, item: Any) -> None:
        _, number, _ = PUBLICATION.unpack(item[0])
        self.positions[session] += 1
        uid = {number: uid for uid, number in self.sessions[session].items()}.get(number)
        if uid is None:
            return  # it has ended
        sequence = int.from_bytes(item[1], "big")
        assert sequence > self.last.get((session, number), 0), "twice in one session"
        self.last[session, number] = sequence
        self.waiting.append((uid, sequence))
        if not self.credit:
            self.work()

    def work(self) -> None:
        """All that was taken is done."""
        for uid, sequence in self.waiting:
            if sequence > self.done.get(uid, 0):  # else subscribers have it
                assert sequence == self.done.get(uid, 0) + 1, "a gap"
                self.done[uid] = sequence
        self.waiting.clear()

    def note(self) -> memoryview:
        """The note that all is done."""
        self.work()
        numbers = {number: uid for session in self.sessions.values() for uid, number in session.items()}
        done = {number: self.done[uid] for number, uid in numbers.items() if uid in self.done}
        return memoryview(msgspec.msgpack.encode(Taken(done=done)))


class _Sender:
    """Stands for a Sender: what is sent is taken, and acknowledged, at once or not at all."""

    connected = False
    compression = None
    delegate: _Delegate

    def __init__(self, source: Any, *, acked: Callable[[int, memoryview], None], **_named: Any) -> None:
        self._source = source
        self._acked = acked
        self._window: list[Any] = []
        self._position = 0

    @property
    def unacknowledged(self) -> int:
        return len(self._window)

    def push(self) -> None:
        pass

    def stop(self, _timeout: float) -> None:
        pass

    def forget_all(self) -> None:
        self._window.clear()
        self._position = 0

    def _acknowledge(self, position: int, note: memoryview) -> None:
        count = position - self._position
        del self._window[:count]
        self._position = position
        self._acked(count, note)

    def run(self, line: Any, position: int) -> None:
        delegate, session = self.delegate, line.session
        self._acknowledge(position, delegate.note() if delegate.acknowledges else memoryview(b""))
        pending, taken, acknowledged = list(self._window), 0, 0
        while taken < delegate.takes and session in delegate.sessions:
            if not pending:
                pending = self._source.take(4, 1 << 20)
                self._window += pending
            if not pending:
                break
            delegate.take_item(session, pending.pop(0))
            taken += 1
            if acknowledged < delegate.acknowledges:
                acknowledged += 1
                self._acknowledge(delegate.positions[session], delegate.note())
        raise delegate.line_error if session in delegate.sessions else WireError("cut")


class _Finder:
    """Stands for a finder: there is the delegate, or none."""

    def __init__(self, delegate: _Delegate) -> None:
        self._delegate = delegate

    def find(self, *_given: Any) -> Any:
        before, self._delegate.before = self._delegate.before, _nothing
        before()
        if not self._delegate.is_there:
            raise DelegateNotFoundError("none")
        return SimpleNamespace(proxy=ServiceRef("delegate", "publications", ("127.0.0.1:1",)), service_id="delegate")

    def note_in_vain(self, _service_id: str) -> None:
        pass

    def forget_tried(self) -> None:
        pass


class _Line:
    def __init__(self, _sock: Any) -> None:
        self.session = ""


class Life:
    """A connection whose thread does not run: what it does is done here."""

    def __init__(self, credit: int = 0) -> None:
        self.delegate = delegate = _Delegate(credit)
        self.told: list[str] = []
        self.made: dict[str, _Publication] = {}
        """All that are registered, by id."""
        self.renewals = SimpleNamespace(manage=lambda *_given: None, remove=lambda _key: None, hasten=lambda _key: None)
        self.connection = DelegateConnection(
            Config(), self.renewals,  # type: ignore[arg-type]
            finder=_Finder(delegate), name="p", reports=ConnectionReports("p", None, self.told.append),  # type: ignore[arg-type]
        )  # fmt: skip
        self.connection._sender.delegate = delegate  # type: ignore[attr-defined]
        self.registrations = self.connection.registrations
        self.registrations._seconds = -1.0  # an answer that does not come is none
        self.link = self.connection._link

    def open(self) -> None:
        self.connection._connect(_Finder(self.delegate).find())

    # -- what happens -------------------------------------------------------------------------------------------

    def register(self, uid: str) -> None:
        if uid in self.made or self.link.has_left:
            return
        publication = _Publication(uid)
        publication.sequence = self.delegate.done.get(uid, 0)
        with suppress(JbiError):
            self.registrations.register(publication)  # type: ignore[arg-type]
            self.made[uid] = publication

    def unregister(self, uid: str) -> None:
        if uid in self.made:
            with suppress(JbiError):
                self.registrations.unregister(self.made[uid])  # type: ignore[arg-type]
                self._end(uid)

    def give_up(self, uid: str) -> None:
        if uid in self.made:
            with suppress(JbiError):
                self.registrations.give_up(self.made[uid])  # type: ignore[arg-type]
                self._end(uid)

    def _end(self, uid: str) -> None:
        self.made.pop(uid, None)
        self.delegate.waiting = [each for each in self.delegate.waiting if each[0] != uid]

    def register_again(self, uid: str) -> None:
        """Under the same id, as a bridge does."""
        publication = _Publication(uid)
        publication.sequence = self.made[uid].sequence
        with suppress(JbiError):
            self.registrations.register(publication)  # type: ignore[arg-type]
            self.made[uid] = publication

    def insist(self, uid: str) -> None:
        """Register, for as long as a delegate that has forgotten us is asked twice."""
        with mock.patch.object(self.registrations, "_seconds", 0.05):
            self.register(uid)

    def begin_to_unregister(self, uid: str) -> None:
        """By another thread, until `end_to_unregister`: its call has come to the delegate, and is not done."""
        came, self.go_on = threading.Event(), threading.Event()

        def wait() -> None:
            came.set()
            assert self.go_on.wait(10.0)

        self.delegate.before = wait
        self.ending = threading.Thread(target=self.registrations.unregister, args=(self.made.pop(uid),))
        self.ending.start()
        assert came.wait(10.0)

    def end_to_unregister(self, _uid: str) -> None:
        self.go_on.set()
        self.ending.join(10.0)

    def publish(self, uid: str, count: int = 1) -> None:
        publication = self.made.get(uid)
        for _ in range(count if publication is not None else 0):
            with suppress(WireError):
                self.connection.publish(publication, [publication.next_object()], 0.0)  # type: ignore[arg-type,union-attr]
                publication.sequence += 1  # type: ignore[union-attr]

    def renew(self) -> None:
        attachment = self.link.attachment
        if attachment is not None and not self.link.has_left:
            with suppress(JbiError):
                self.connection._renew(attachment)

    def lose_lease(self) -> None:
        """The renewal says so; at the delegate the session has ended."""
        attachment = self.link.attachment
        if attachment is not None:
            self.delegate.sessions.pop(attachment.opened.uid, None)
            self.connection._lease_lost(attachment, UnknownLeaseError("not here"))

    def lose_an_old_lease(self, _uid: str) -> None:
        """That of a delegate of before, of which we are told late: nothing happens."""
        before = self.link.state
        self.connection._lease_lost(copy(self.link.attached()), UnknownLeaseError("not here"))
        assert self.link.state is before

    def leave(self) -> None:
        self.connection._thread.is_alive = lambda: False  # type: ignore[method-assign]
        with mock.patch.object(self.connection._thread, "join"):
            self.connection.close(0.0)

    def happen(self, event: str) -> None:
        name, _, uid = event.partition(":")
        match name:
            case "restart":
                self.delegate.restart()
            case "lost":
                self.lose_lease()
            case "leave":
                self.leave()
            case "certificate":
                for each in self.made.values():
                    each.renewed = True
            case "away" | "back":
                self.delegate.is_there = name == "back"
            case "turn":
                self.connection._turn()
            case "renew":
                self.renew()
            case "cut":
                self.delegate.line_error = WireError("cut") if uid == "" else ERRORS[uid](uid)
            case "take":
                self.delegate.takes = int(uid)
            case "acknowledge":
                self.delegate.acknowledges = int(uid)
            case "open":
                self.open()
            case _:
                getattr(self, name)(uid or "r")

    def lead(self, step: str) -> None:
        """A step of `LIVES`: what happens, [answers], and what happens at the call before or after it is done."""
        step, _, meanwhile = step.partition(" while ")
        step, _, before = step.partition(" after ")
        event, *answers = step.split()
        self.delegate.answers = answers[::-1]
        self.delegate.meanwhile = lambda: self._happen_all(meanwhile)
        self.delegate.before = lambda: self._happen_all(before)
        self.happen(event)
        self.delegate.answers, self.delegate.before, self.delegate.meanwhile = [], _nothing, _nothing

    def _happen_all(self, events: str) -> None:
        delegate = self.delegate
        kept = delegate.answers, delegate.before, delegate.meanwhile
        delegate.answers, delegate.before, delegate.meanwhile = [], _nothing, _nothing
        for event in events.split():
            self.happen(event)
        delegate.answers, delegate.before, delegate.meanwhile = kept

    # -- what holds ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The records are those of what is wanted; who publishes knows whether a delegate answers."""
        assert set(self.registrations.wanted()) == set(self.made)
        assert set(self.registrations.refusals()) <= set(self.made)
        if not self.link.has_left:
            assert (bool(self.told) and self.told[-1] != "") == (self.link.state in SILENT)
            assert "" not in self.told[::2], "said in turn"

    def end(self) -> None:
        """When delegates answer well from now on, one has what is wanted, nothing else, and all objects."""
        if self.link.has_left:
            self.connection._turn()
            assert self.link.has_left
            return
        self.happen("back")
        self.delegate.takes = self.delegate.acknowledges = 1_000
        self.delegate.line_error = WireError("cut")
        for _ in range(3):
            self.connection._turn()
            self.renew()
            self.check()
        self.connection._turn()
        attachment = self.link.attached()
        assert set(self.delegate.sessions[attachment.opened.uid]) == set(self.made)
        assert not self.registrations.refusals()
        assert {uid: each.sequence for uid, each in self.made.items()} == {
            uid: self.delegate.done.get(uid, 0) for uid in self.made
        }
        assert all(not self.connection.queue.unfinished(each.number) for each in self.made.values())


@pytest.fixture(autouse=True, scope="module")
def _stand_ins() -> Iterator[None]:
    """Delegates, lines and senders that stand for those of the network."""

    def greet(line: Any, hello: Any) -> int:
        line.session = hello.token
        position: int | None = current["delegate"].positions.get(hello.token)
        if position is None:
            raise WireError("refused")
        return position

    current: dict[str, Any] = {}
    made = Life.__init__

    def remember(life: Life, credit: int = 0) -> None:
        with mock.patch.object(connection_module, "Sender", _Sender):
            made(life, credit)
        current["delegate"] = life.delegate

    def proxy(ref: ServiceRef, *_given: Any, **_named: Any) -> Any:
        return current["delegate"]

    with (
        mock.patch.object(registrations_module, "DelegateProxy", proxy),
        mock.patch.object(registrations_module, "ABANDONED_SECONDS", 0.0),
        mock.patch.object(connection_module, "dial", return_value=SimpleNamespace(close=_nothing)),
        mock.patch.object(connection_module, "StreamSocket", _Line),
        mock.patch.object(connection_module, "greet", greet),
        mock.patch.object(Life, "__init__", remember),
    ):
        yield


LIVES = (
    "open, register, publish, turn, publish, turn",
    "open, register, publish, cut:no, turn, publish, turn",
    "open, register, publish, away, turn, turn, restart, back, turn, turn",
    "open, register, cut:no, turn, publish, lost, lost, turn",
    "open, register, cut:no, turn, leave",
    "open, register, lost, away, turn, lost, turn, back, turn",
    "open, register, publish, turn while lost, turn",
    "open, register, away, turn, back, turn while lost, turn",
    "open, leave, turn, leave",
    "open, turn, leave",
    "leave",
    "open, away, turn, leave, turn",
    "open, lost, leave",
    "open, lost, away, turn, leave",
    "open, lost, away, turn after leave",
    "open, turn while leave",
    "open, register, lost, turn while leave",
    "open, register no",
    "open, register silent, renew",
    "open, register silent, register",
    "open, restart, insist",
    "open, register, publish, turn, register_again, publish",
    "open, register, unregister",
    "open, register, unregister deaf",
    "open, register, unregister silent, unregister",
    "open, register:s, publish:s, insist while lost turn, publish, turn",
    "open, register, register:s, lost, turn while unregister:s, renew",
    "open, register, lost, turn, lose_an_old_lease, publish, turn",
    "open, register, give_up silent",
    "open, register, publish, turn, certificate, renew while unregister",
    "open, register, certificate, renew after begin_to_unregister, end_to_unregister",
    "open, register, lost, turn yes no, turn yes no, register_again no, publish, turn yes yes",
    "open, register, lost, publish, turn yes no, unregister deaf, unregister",
    "open, register, register:s, publish, lost, turn yes no, give_up deaf, publish:s",
    "open, register, register:s, lost, publish, publish:s, turn yes full, turn, renew full, renew yes",
    "open, register, lost, turn denied, publish, turn",
)
"""Lives that walk all rows of the tables: what happens, the delegate's answers to the calls that are made meanwhile,
and what happens after one has come there and while its answer comes."""


def test_lives_walk_every_row_of_the_tables(walked_rows: Any) -> None:
    # When each of these lives is led, with quality of service and without
    for text in LIVES:
        for credit in (0, 3):
            life = Life(credit)
            for step in text.split(", "):
                life.lead(step)
                life.check()
            # Expect it to end well
            life.end()
    # Expect no row to be left that nothing leads to
    assert walked_rows.left(CONNECTION) == walked_rows.left(REMOTE_REGISTRATION) == set()


ANSWERS = st.lists(st.sampled_from(["yes", "yes", "no", "full", "silent", "deaf", "denied"]), max_size=3).map(" ".join)
UIDS = st.sampled_from(["r", "s", "t"])
EVENTS = st.lists(
    st.sampled_from(["restart", "lost", "away", "back", "give_up:r", "unregister:s", "publish:t"]),
    max_size=2,
).map(" ".join)


@settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
class Lives(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    @initialize(credit=st.sampled_from([0, 1, 3]))
    def begin(self, credit: int) -> None:
        self.life = Life(credit)
        for step in ("open", "register:r", "register:s", "register:t"):
            self.life.lead(step)

    @precondition(lambda self: len(self.life.made) < 3)
    @rule(uid=UIDS, answers=ANSWERS, before=EVENTS, meanwhile=EVENTS)
    def register(self, uid: str, answers: str, before: str, meanwhile: str) -> None:
        self.life.lead(f"register:{uid} {answers} after {before} while {meanwhile}")

    @precondition(lambda self: len(self.life.made) > 1)
    @rule(what=st.sampled_from(["unregister", "give_up"]), uid=UIDS, answers=ANSWERS, before=EVENTS, meanwhile=EVENTS)
    def end(self, what: str, uid: str, answers: str, before: str, meanwhile: str) -> None:
        self.life.lead(f"{what}:{uid} {answers} after {before} while {meanwhile}")

    @precondition(lambda self: self.life.made)
    @rule(uid=UIDS, count=st.integers(1, 6))
    def publish(self, uid: str, count: int) -> None:
        self.life.publish(uid, count)

    @rule(answers=ANSWERS, before=EVENTS, meanwhile=EVENTS, takes=st.integers(0, 9), acknowledges=st.integers(0, 9))
    def turn(self, answers: str, before: str, meanwhile: str, takes: int, acknowledges: int) -> None:
        self.life.delegate.takes, self.life.delegate.acknowledges = takes, acknowledges
        self.life.lead(f"turn {answers} after {before} while {meanwhile}")

    @rule(event=st.sampled_from(["restart", "lost", "away", "back", "certificate"]))
    def happen(self, event: str) -> None:
        self.life.happen(event)

    @rule(answers=ANSWERS, before=EVENTS, meanwhile=EVENTS)
    def renew(self, answers: str, before: str, meanwhile: str) -> None:
        self.life.lead(f"renew {answers} after {before} while {meanwhile}")

    @precondition(lambda self: not self.life.made)
    @rule()
    def leave(self) -> None:
        self.life.leave()

    @invariant()
    def is_in_step(self) -> None:
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


TestLives = Lives.TestCase
