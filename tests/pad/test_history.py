"""Queries of a delegate's archive: the same answers as subscriptions, pulled by credits, gone without a trace."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping, MemoryResults

from jbi_pubsub import Config
from jbi_pubsub.core.access import ALLOWED, Decision
from jbi_pubsub.core.config import QosSection
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    ConfigurationError,
    JbiError,
    OversizeError,
    PredicateError,
    StorageError,
    UnknownUidError,
    WireTimeoutError,
)
from jbi_pubsub.core.info_object import LossNotice, Parcel, left_out
from jbi_pubsub.core.quality import Contract, Rate, Settings
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.quality import Pulled
from jbi_pubsub.pad.past.feeds import AGAIN_SECONDS
from jbi_pubsub.pad.past.queries import SESSION_MOST
from jbi_pubsub.pad.past.service import ArchiveService
from jbi_pubsub.protocol.deliveries import CHUNK, FINISHED, ITEM, LAST_CHUNK, LOSS, PLACED, POSITION, Heard
from jbi_pubsub.protocol.entries import ArchiveEntry
from jbi_pubsub.protocol.replies import QueryEnd, QueryOpened
from jbi_pubsub.protocol.requests import NOT_BEFORE, QueryRequest
from jbi_pubsub.protocol.services import HistoryProxy, SubscriptionsProxy
from tests.conftest import Federation, Figures, eventually
from tests.pad.test_archiving import Archived

pytestmark = pytest.mark.processes

UNIT = define("test.Unit", {"name": str})
EVERYBODY = Caller("192.0.2.1:1", identity="alice")


class Asking(Archived):
    """A delegate whose archive is asked, and a subscriber that reads by hand."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.session_id = self.delegate.sessions.open("asker", 1e6)[0]
        self.delegate.tables.attached(self.session_id)
        self.found: dict[int, list[int]] = {}
        """Positions by number of the query."""
        self.objects: list[Parcel] = []
        self.finished: dict[int, QueryEnd] = {}
        self.losses: list[LossNotice] = []
        self.coming: dict[int, bytes] = {}
        self.consumes = True

    @property
    def session(self) -> SubscriberSession:
        return self.delegate.tables.session(self.session_id)

    @property
    def history(self) -> ArchiveService:
        assert self.delegate.history is not None
        return self.delegate.history

    def fill(self, count: int = 20, *, payload: bytes = b"p") -> None:
        """Objects of one kept registration: number n has <n>n</n>, and position n."""
        registration = self.registrations[0] if self.registrations else self.enter("a", persist=True)
        first = max(registration.sequence, registration.archived) + 1
        for number in range(first, first + count):
            assert not self.send(registration, number, metadata=b"<m><n>%d</n></m>" % number, payload=payload)

    def ask(self, caller: Caller | None = None, **request: Any) -> QueryOpened:
        opened = self.history.queries.open(self.session, QueryRequest(**request), caller)
        self.found[opened.number] = []
        return opened

    def take(self) -> None:
        """What goes out, and its acknowledgement."""
        while items := self.session._take(500, 1 << 20):
            for parts in items:
                self._take_one(b"".join(parts))
            consumed = {number: len(found) for number, found in self.found.items()} if self.consumes else {}
            self.session._acked(len(items), msgspec.msgpack.encode(Heard(consumed)))

    def _take_one(self, data: bytes) -> None:
        kind, number = ITEM.unpack_from(data)
        body = data[ITEM.size :]
        if kind == FINISHED:
            assert number not in self.finished
            self.finished[number] = msgspec.msgpack.decode(body, type=QueryEnd)
        elif kind == LOSS:
            self.losses.append(msgspec.msgpack.decode(body, type=LossNotice))
        else:
            assert kind in (PLACED, CHUNK, LAST_CHUNK), kind
            assert number not in self.finished, "FINISHED is the last"
            (position,) = POSITION.unpack_from(body)
            self.coming[number] = self.coming.get(number, b"") + body[POSITION.size :]
            if kind != CHUNK:
                self.objects.append(Parcel.received(self.coming.pop(number)))
                self.found[number].append(position)

    def answer(self, opened: QueryOpened) -> list[int]:
        """All that comes of a query."""
        eventually(lambda: self.take() or opened.number in self.finished)
        return self.found[opened.number]

    def all(self, caller: Caller | None = None, **request: Any) -> list[int]:
        return self.answer(self.ask(caller, **request))


@pytest.fixture
def make(standing: Callable[..., Any]) -> Callable[..., Asking]:
    return partial(standing, Asking)


@pytest.fixture
def place(make: Callable[..., Asking], keeping: MemoryKeeping) -> Asking:
    made = make(keeping)
    made.fill()
    return made


# -- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        ({}, range(1, 21)),
        ({"type": "t"}, range(1, 21)),
        ({"type": "t", "version": "1.0"}, range(1, 21)),
        ({"type": "t", "version": "2.0"}, ()),
        ({"type": "other"}, ()),
        ({"predicate": "/m/n > 17"}, (18, 19, 20)),
        ({"predicate": "/m/n > 17", "order": "newest"}, (20, 19, 18)),
        ({"limit": 3}, (1, 2, 3)),
        ({"after": 5, "up_to": 8}, (6, 7, 8)),
        ({"after": 30}, ()),
        ({"since": 2.0}, ()),
        ({"registrations": ("nobody",)}, ()),
        ({"registrations": ()}, ()),
        ({"least_payload": 2}, ()),
        ({"latest_by": "/m/n mod 2"}, (19, 20)),
    ],
)
def test_a_query_gets_what_its_conditions_say(place: Asking, request_: dict[str, Any], found: Any) -> None:
    opened = place.ask(**request_)
    assert place.answer(opened) == list(found)
    told = place.finished[opened.number]
    assert (told.state, told.matched, told.error, told.left_out) == ("finished", len(found), "", ())
    assert opened.end == min(20, request_.get("up_to", 20))
    # And nothing of it is left
    eventually(lambda: place.history.status()["open"] == 0)
    assert not place.session._queues


@pytest.mark.row("Q-02", "G-111")
def test_a_query_and_a_subscription_of_one_predicate_get_the_same(place: Asking) -> None:
    # Given a subscription, and a query of the same predicate behind it
    predicate = "/m/n mod 3 = 1 or /m/n = 24"
    live = place.subscribe(age=NOT_BEFORE, predicate=predicate)
    place.fill(30)
    found = place.all(predicate=predicate, after=20)
    assert found
    session = place.delegate.tables.session(place.sessions[live])
    heads = [Parcel.received(b"".join(parts)[ITEM.size :]).head for parts in session._take(500, 1 << 20)]
    assert [head.sequence for head in heads] == found


def test_what_is_published_later_is_not_seen(place: Asking, keeping: MemoryKeeping) -> None:
    opened = place.ask(bound=5)
    place.fill(5)
    assert place.answer(opened) == list(range(1, 21))
    assert opened.end == 20


def test_an_archive_that_tells_before_it_has_answered_is_waited_for(
    place: Asking, keeping: MemoryKeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive that has something before its call returns, and a history whose thread looks at once
    opening = keeping.open

    def slowly(query: Any, wake: Callable[[], None], **more: Any) -> Any:
        results = opening(query, wake, **more)
        wake()
        eventually(lambda: math.isinf(place.history._thread._turns.first()))
        return results

    monkeypatch.setattr(keeping, "open", slowly)
    # When it is asked, expect all of it
    assert place.all(up_to=3) == [1, 2, 3]


def test_objects_come_as_they_were_and_filters_cut_them(place: Asking) -> None:
    place.fill(1, payload=b"<p><a>1</a><b>2</b></p>")
    assert place.all(after=20) == [21]
    assert (bytes(place.objects[-1].head.metadata), bytes(place.objects[-1].payload)) == (
        b"<m><n>21</n></m>", b"<p><a>1</a><b>2</b></p>",
    )  # fmt: skip
    assert place.all(after=20, payload_filter="//b") == [21]
    assert b"<b>2</b>" in bytes(place.objects[-1].payload)
    assert b"<a>" not in bytes(place.objects[-1].payload)
    assert place.all(after=20, payload_filter="//c", suppress_empty=True) == []


def test_a_query_says_what_it_withheld_as_its_filter_could_not_be_applied(place: Asking) -> None:
    # Given XML that is nested too deeply to be filtered, before some that is not
    deep = b"<a>" * 300 + b"</a>" * 300
    place.fill(1, payload=deep)
    place.fill(1, payload=b"<a/>")
    # When it is asked for with a filter; Expect the other one, and the end to say that this is not all
    opened = place.ask(after=20, payload_filter="//a")
    assert place.answer(opened) == [22]
    assert place.finished[opened.number].error == "results that are lost: oversize 1"
    # Expect it whole where that is wished, and nothing to be missing
    opened = place.ask(after=20, payload_filter="//a", unfiltered="deliver")
    assert place.answer(opened) == [21, 22]
    assert bytes(place.objects[-2].payload) == deep
    assert place.finished[opened.number].error == ""


def test_a_large_object_comes_in_chunks_each_with_its_position(place: Asking) -> None:
    payload = bytes(range(256)) * 4_000
    place.fill(1, payload=payload)
    assert place.all(after=19) == [20, 21]
    assert bytes(place.objects[-1].payload) == payload


def test_a_template_is_matched_as_that_of_a_subscription(place: Asking) -> None:
    wanted = EntryRep(UNIT, ("7th",))
    assert place.all(entries=(wanted,)) == []
    mine = place.registrations[0].topic.entries[0]
    assert place.all(entries=(mine,)) == list(range(1, 21))
    assert place.all(entries=(mine, wanted)) == []


# -- pulled -------------------------------------------------------------------------------------------------------


def test_nothing_piles_up_at_the_delegate(place: Asking, keeping: MemoryKeeping) -> None:
    # Given a client that takes nothing
    place.consumes = False
    opened = place.ask(bound=4)
    eventually(lambda: len(keeping.answer(keeping.opened[-1])) - len(keeping.open_now[-1]._left) == 4)
    place.take()
    time.sleep(0.1)
    place.take()
    # Expect as many objects as its bound on their way, and none taken from the archive beyond that
    assert place.found[opened.number] == [1, 2, 3, 4]
    assert keeping.open_now[-1].most_taken <= 4
    assert len(keeping.open_now[-1]._left) == 16
    assert place.delegate.sessions.budget.used == 0
    # And all of them when it takes them
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode(Heard({opened.number: 4})))
    assert place.answer(opened) == list(range(1, 21))


def test_without_memory_it_waits_and_goes_on(place: Asking) -> None:
    place.delegate.sessions.budget.add(place.delegate.sessions.budget.limit)
    opened = place.ask()
    time.sleep(2 * AGAIN_SECONDS)
    place.take()
    assert place.found[opened.number] == []
    place.delegate.sessions.budget.add(-place.delegate.sessions.budget.limit)
    assert place.answer(opened) == list(range(1, 21))


def test_queries_take_turns(place: Asking) -> None:
    # Given twenty queries of one session
    asked = [place.ask(bound=2) for _ in range(SESSION_MOST)]
    with pytest.raises(BackPressureError, match=f"{SESSION_MOST} queries of this subscriber"):
        place.ask()
    # Expect all of them to be answered, and then others
    assert [place.answer(opened) for opened in asked] == [list(range(1, 21))] * SESSION_MOST
    eventually(lambda: not place.history.status()["open"])
    assert place.all(limit=1) == [1]


def test_a_delegate_has_a_limit_too(make: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch) -> None:
    place = make()
    place.fill(3)
    monkeypatch.setattr(place.history.queries, "_max_queries", 2)
    first, second = place.ask(), place.ask()
    with pytest.raises(BackPressureError, match="max_queries"):
        place.ask()
    assert place.answer(first) == place.answer(second) == [1, 2, 3]
    # And one that the archive refuses leaves nothing
    eventually(lambda: not place.history.status()["open"])
    place.keeping.max_queries = 0
    with pytest.raises(BackPressureError, match="too many"):
        place.ask()
    eventually(lambda: not place.history.status()["open"])
    assert not place.session._queues


# -- ends ---------------------------------------------------------------------------------------------------------


def test_a_cancelled_query_is_told_so_and_sends_nothing_more(place: Asking, keeping: MemoryKeeping) -> None:
    place.consumes = False
    opened = place.ask(bound=4)
    eventually(lambda: place.take() or len(place.found[opened.number]) == 4)
    place.history.queries.cancel(place.session_id, opened.number)
    assert place.answer(opened) == [1, 2, 3, 4]
    assert place.finished[opened.number].state == "cancelled"
    assert keeping.open_now[-1].cancelled
    # And again, or for one that never was, it means nothing
    place.history.queries.cancel(place.session_id, opened.number)
    place.history.queries.cancel(place.session_id, 999)
    eventually(lambda: place.history.status()["ended"] == {"cancelled": 1})


@pytest.mark.row("G-102")
def test_a_query_that_takes_too_long_ends_by_the_clock(place: Asking, keeping: MemoryKeeping) -> None:
    keeping.may_answer.clear()
    opened = place.ask(timeout=2.0)
    assert place.history.queries.progress(place.session_id, opened.number).state == "running"
    assert place.answer(opened) == []
    assert place.finished[opened.number].state == "timed_out"
    keeping.may_answer.set()


def test_a_query_that_fails_says_why_behind_what_it_had(place: Asking, keeping: MemoryKeeping) -> None:
    place.consumes = False
    opened = place.ask(bound=4)
    eventually(lambda: place.take() or len(place.found[opened.number]) == 4)
    keeping.open_now[-1].fail("the worker died")
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode(Heard({opened.number: 4})))
    assert place.answer(opened) == [1, 2, 3, 4]
    told = place.finished[opened.number]
    assert (told.state, told.error) == ("failed", "the worker died")


def test_many_queries_one_after_the_other_leave_nothing(place: Asking) -> None:
    # a hundred of them
    for number in range(100):
        opened = place.ask(predicate=f"/m/n = {number % 25}", timeout=1e6)
        assert len(place.answer(opened)) == (1 <= number % 25 <= 20)
    eventually(lambda: not place.history.status()["open"])
    eventually(lambda: not place.history._thread._turns)
    assert not place.history.queries._open
    assert not place.session._queues


def test_entries_that_cannot_be_read_are_no_matter_to_who_asks_for_none(
    place: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive that has a registration whose entries are damaged
    source = msgspec.structs.replace(place.keeping.known[place.registrations[0].uid], entries=b"damaged")
    monkeypatch.setattr(place.keeping, "sources", lambda: [source])
    # Expect who names registrations or publishers to get what they have published
    assert place.all(registrations=(source.uid,)) == place.all(publisher=source.publisher) == list(range(1, 21))
    with pytest.raises(StorageError, match="can't be read"):
        place.ask(entries=(EntryRep(UNIT, ("t",)),))


def test_numbers_of_others_are_not_known(place: Asking) -> None:
    opened = place.ask(bound=1)
    with pytest.raises(UnknownUidError):
        place.history.queries.progress("session-other", opened.number)
    place.history.queries.cancel("session-other", opened.number)
    assert place.answer(opened) == list(range(1, 21))


# -- what makes no sense ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error", "what"),
    [
        ({"predicate": "//["}, PredicateError, "predicate"),
        ({"predicate": "/x:m"}, PredicateError, "predicate"),
        ({"payload_filter": "//["}, PredicateError, "filter"),
        ({"latest_by": "//["}, PredicateError, "latest_by"),
        ({"since": 2.0, "until": 1.0}, ConfigurationError, "after until"),
        ({"least_payload": 2, "most_payload": 1}, ConfigurationError, "payload"),
        ({"bound": 0}, ConfigurationError, "bound"),
        ({"bound": 10**9}, ConfigurationError, "bound"),
        ({"timeout": -1.0}, ConfigurationError, "timeout"),
        ({"timeout": float("nan")}, ConfigurationError, "timeout"),
        ({"language": "python"}, ConfigurationError, "XPath"),
        ({"object_ids": ("x" * 2_000,)}, ConfigurationError, "object ids"),
        ({"type": "x" * 2_000}, ConfigurationError, "name"),
        ({"namespaces": (("p", "u" * 20_000),)}, OversizeError, "namespaces have 20001"),
        ({"namespaces": (("p", "u"),) * 10_000}, OversizeError, "namespaces have 20000"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    place: Asking, request_: dict[str, Any], error: type[JbiError], what: str
) -> None:
    with pytest.raises(error, match=what):
        place.ask(**request_)
    assert not place.history.queries._open
    assert not place.session._queues


# -- who may ------------------------------------------------------------------------------------------------------


class Rules:
    """An access policy of one table."""

    version = 1

    def __init__(self, **of: Decision) -> None:
        self.of = of

    def allow(self, _caller: Caller, action: str, subject: Any) -> Decision:
        if action != "query":
            return ALLOWED
        return self.of.get(subject.type, Decision(not subject.type))

    def record(self, *_: Any) -> None: ...

    def close(self) -> None: ...


def test_of_each_type_the_rules_say_what_may_be_read(place: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(**of: Decision) -> None:
        monkeypatch.setattr(place.history.queries.source._scopes, "_access", Rules(**of))

    rule(t=Decision(True, "p:1", "/m/n < 4"))
    assert place.all(EVERYBODY) == [1, 2, 3]
    assert place.all(EVERYBODY, type="t", predicate="/m/n > 1 or /m/n = 9") == [2, 3]
    assert place.all(EVERYBODY, predicate="/m/n > 4") == []
    assert place.history.queries.source.count(QueryRequest(), 5.0, EVERYBODY).count == 3
    # Expect what may not be read to be left out and said; a query of nothing else to be refused
    rule(other=ALLOWED)
    for what in ({}, {"type": "t"}):
        with pytest.raises(AccessDeniedError):
            place.ask(EVERYBODY, **what)
        with pytest.raises(AccessDeniedError):
            place.history.queries.source.explain(QueryRequest(**what), EVERYBODY)
    # Expect an explanation to be asked for apart from the rule, which is not told
    rule(t=Decision(True, "p:1", "/m/n < 4"))
    asked: list[Any] = []
    explaining = place.keeping.explain
    monkeypatch.setattr(place.keeping, "explain", lambda query: asked.append(query) or explaining(query))
    place.history.queries.source.explain(QueryRequest(predicate="/m/n > 1"), EVERYBODY)
    assert [(each.predicate, each.where) for each in asked[0].scopes] == [("/m/n > 1", "/m/n < 4")]
    assert asked[0].is_narrowed
    # And one that is open to end when the rules change
    rule(t=ALLOWED)
    place.consumes = False
    opened = place.ask(EVERYBODY, bound=1)
    eventually(lambda: place.take() or place.found[opened.number])
    place.history.ask_again()
    assert opened.number not in place.finished
    rule(t=Decision(True, "p:1", "/m/n < 4"))
    place.history.ask_again()
    place.answer(opened)
    assert (place.finished[opened.number].state, place.finished[opened.number].error) == (
        "failed", "access was withdrawn",
    )  # fmt: skip


def test_that_something_may_not_be_read_is_said_and_not_what(place: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place.keeping.known[place.registrations[0].uid]
    hidden = msgspec.structs.replace(source, uid="x", type=msgspec.structs.replace(source.type, name="hidden"))
    monkeypatch.setattr(place.keeping, "sources", lambda: [source, hidden])
    monkeypatch.setattr(place.history.queries.source._scopes, "_access", Rules(t=ALLOWED))
    opened = place.ask(EVERYBODY)
    assert opened.left_out == ("* *",)
    assert len(place.answer(opened)) == 20
    assert place.finished[opened.number].left_out == ("* *",)
    assert "hidden" not in f"{place.history.queries.source.explain(QueryRequest(), EVERYBODY)}"


def test_what_a_rule_hides_is_not_counted_in_how_a_query_gets_on(
    place: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.history.queries.source._scopes, "_access", Rules(t=Decision(True, "p:1", "/m/n < 4")))
    found = MemoryResults.progress
    monkeypatch.setattr(
        MemoryResults, "progress", lambda self: msgspec.structs.replace(found(self), candidates=20, verified=20)
    )
    opened = place.ask(EVERYBODY)
    assert place.answer(opened) == [1, 2, 3]
    ended = place.finished[opened.number]
    assert (ended.matched, ended.candidates, ended.verified) == (3, 3, 0)


# -- counting and explaining --------------------------------------------------------------------------------------


def test_objects_are_counted_without_being_fetched(place: Asking, keeping: MemoryKeeping) -> None:
    keeping.at_once = 3
    assert place.history.queries.source.count(QueryRequest(predicate="/m/n > 5"), 10.0, None).count == 15
    assert place.history.queries.source.count(QueryRequest(type="nothing"), 10.0, None).count == 0
    assert place.history.queries.source.explain(QueryRequest(), None).explanation.objects == 20
    keeping.may_answer.clear()
    with pytest.raises(WireTimeoutError, match="counted within"):
        place.history.queries.source.count(QueryRequest(), 0.05, None)
    keeping.may_answer.set()
    assert all(each.cancelled for each in keeping.open_now)


def test_one_party_leaves_queries_and_calls_for_others(
    place: Asking, keeping: MemoryKeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that has 16 queries at once, and 4 calls for those without a session; nothing is answered yet
    monkeypatch.setattr(place.history.queries, "_max_queries", 16)
    monkeypatch.setattr(place.history.queries.source, "_max_calls", 4)
    keeping.may_answer.clear()
    stranger, other = Caller("192.0.2.7:1"), Caller("192.0.2.8:1")
    # When a stranger opens queries; Expect three quarters to be theirs, and the rest others'
    opened = [place.history.queries.open(place.session, QueryRequest(), stranger) for _ in range(12)]
    with pytest.raises(BackPressureError, match="12 of them yours"):
        place.history.queries.open(place.session, QueryRequest(), stranger)
    opened += [place.history.queries.open(place.session, QueryRequest(), other) for _ in range(4)]
    # ... and the same of calls
    counting = ExitStack()
    for _ in range(3):
        counting.enter_context(place.history.queries.source._call(stranger))
    with pytest.raises(BackPressureError, match="a quarter of"):
        place.history.queries.source.count(QueryRequest(), 20.0, stranger)
    counting.enter_context(place.history.queries.source._call(other))
    counting.close()
    assert not place.history.queries.source._calls
    for each in opened:
        place.history.queries.cancel(place.session.session_id, each.number)
    keeping.may_answer.set()


def test_who_has_no_session_takes_a_quarter_of_the_queries_at_most(
    place: Asking, keeping: MemoryKeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that has two calls at once for those without a session, and two of them are under way
    monkeypatch.setattr(place.history.queries.source, "_max_calls", 2)
    keeping.may_answer.clear()
    failed: list[str] = []

    def count() -> None:
        with pytest.raises(StorageError) as raised:
            place.history.queries.source.count(QueryRequest(), 20.0, None)
        failed.append(raised.value.message)

    counting = [threading.Thread(target=count) for _ in range(2)]
    for thread in counting:
        thread.start()
    eventually(lambda: len(keeping.open_now) == 2)
    # When one more comes, expect it to be refused at once, whoever it is
    for caller in (None, EVERYBODY):
        with pytest.raises(BackPressureError, match="a quarter of"):
            place.history.queries.source.count(QueryRequest(), 20.0, caller)
        with pytest.raises(BackPressureError, match="a quarter of"):
            place.history.queries.source.explain(QueryRequest(), caller)
    # Expect queries of a session to be open as before
    opened = place.ask(limit=1)
    keeping.may_answer.set()
    for results in keeping.open_now[:2]:
        results.fail("the worker has died")
    for thread in counting:
        thread.join(60.0)
    assert failed == ["the archive could not count: the worker has died"] * 2
    assert place.answer(opened) == [1]
    # Expect room again
    assert place.history.queries.source.explain(QueryRequest(), None).explanation.objects == 20


# -- over sockets -------------------------------------------------------------------------------------------------


def of_quality(config: Config, mode: Any) -> Config:
    return msgspec.structs.replace(config, qos=QosSection(mode=mode))


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_delegate_is_asked_over_the_wire(
    archived: Federation, figures: Figures, keeping: MemoryKeeping, mode: str
) -> None:  # fmt: skip
    # Given objects that were archived, and a session without a subscription
    archived.config = of_quality(archived.config, mode)
    archived.lookup()
    pad = archived.pad()
    light = archived.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    uid = light.register_publisher(delegate, figures.schema, figures.figure_1, persist=True)
    for _ in range(30):
        light.publish(uid, figures.figure_1, b"x" * 100)
    light.flush(60.0)
    # Expect the delegate to be found as an archive of the type
    entries = pad.community.lookup_attributes(pad.server_id)
    told = [entry.as_dict()["types"] for entry in entries if entry.cls.name == ArchiveEntry.entry_name]
    assert told == ["mil.af.rl.jbi.Intel_Imagery"]
    ref = pad.endpoints.ref("subscriptions", ())
    security = archived.config.security()
    session, history = (kind(ref, security, timeout=10.0) for kind in (SubscriptionsProxy, HistoryProxy))
    try:
        opened = session.open("asker", 30.0)
        assert history.count(QueryRequest(), 10.0).count == 30
        assert history.explain_query(QueryRequest()).explanation.objects == 30
        asked = history.open_query(opened.uid, QueryRequest(bound=10, limit=25))
        assert history.progress(opened.uid, asked.number).matched == 25
        # And its results to come through the session's queue; a real subscriber reads them in tests/subscriber
        server = pad.delegate.tables.session(opened.uid)
        positions: list[int] = []
        finished: list[QueryEnd] = []

        def read() -> bool:
            take = server._take
            items = take(100, 1 << 20, 31) if mode == "on" else take(100, 1 << 20)
            for parts in items:
                data = b"".join(parts)
                if ITEM.unpack_from(data)[0] == PLACED:
                    positions.append(POSITION.unpack_from(data, ITEM.size)[0])
                else:
                    finished.append(msgspec.msgpack.decode(data[ITEM.size :], type=QueryEnd))
            server._acked(len(items), msgspec.msgpack.encode(Heard({asked.number: len(positions)})))
            return bool(finished)

        eventually(read)
        assert positions == list(range(1, 26))
        assert [told.state for told in finished] == ["finished"]
        with pytest.raises(UnknownUidError):
            eventually(lambda: history.progress(opened.uid, asked.number) and False, timeout=5.0)
        with pytest.raises(UnknownUidError):
            history.open_query("session-of-nobody", QueryRequest())
        assert pad.status()["archive"]["queries"] == {
            "open": 0, "ended": {"finished": 1}, "replays": 0, "results": 25,
        }  # fmt: skip
        history.cancel_query(opened.uid, asked.number)
    finally:
        session.close()
        history.close()


def test_of_a_contract_nothing_that_is_asked_for_is_late_replaced_or_too_fast() -> None:
    # Given a contract whose settings say all that may lose an object
    contract = Contract(Settings(importance=5, deadline=1.0, max_rate=Rate(1.0, "objects"), replace="type", max_size=9))
    pulled = Pulled(contract)
    # Expect importance and size to hold, and nothing else, also when they change, and for single objects
    assert pulled.settings == Settings(importance=5, max_size=9)
    assert pulled.settings is pulled.settings
    contract.settings = Settings(importance=2, deadline=3.0, queue="block")
    assert pulled.settings == Settings(importance=2)
    assert (pulled.level, pulled.by_object) == (1, None)
    asked = Pulled(Contract(Settings(), lambda _parcel: Settings(importance=4, deadline=1.0)))
    assert asked.by_object is asked.by_object
    assert asked.of(left_out("registration-1", 1, 1)) == Settings(importance=4)  # whatever it is


def test_live_objects_keep_coming_beside_a_query_that_waits(place: Asking) -> None:
    live = place.subscribe(age=NOT_BEFORE)
    place.consumes = False
    place.ask(bound=1)
    place.fill(5)
    assert place.sequences(live) == [21, 22, 23, 24, 25]
    # And drains wait for subscriptions, not for who takes no results
    began = time.monotonic()
    assert place.delegate.drain(60.0) == 0
    assert time.monotonic() - began < 30.0
    assert place.delegate.status()["queued"] == place.delegate.status()["in_flight"] == 0
