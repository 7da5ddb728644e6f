"""Queries over a network, and nodes that leave in the middle of their answers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec
import pytest

from jbi_pubsub.core import guard
from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.info_object import InfoObject, packed
from jbi_pubsub.core.signing import SigningKey, signed_uid
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.node.bodies import VERSION, QueryBody, ResultBody, decoded_body
from jbi_pubsub.node.remote_queries import LONGEST_SECONDS, NetworkQueries
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.bridge import RemoteStatus

from .test_infosphere import ALPHA, BRAVO, obj

NUMBER = b"q" * 16
KEY = SigningKey(b"k" * 32, b"a" * 32, (b"c",), b"s", b"t")


def published(at: int) -> InfoObject:
    """An object of that number and time."""
    found = obj("u", at)
    return msgspec.structs.replace(found, platform=msgspec.structs.replace(found.platform, published=float(at)))


class Endless:
    """An archive that finds objects until it is cancelled."""

    service_type = "x"
    lacks = ""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.is_signed = False

    def answers(self, request: QueryRequest) -> Endless:  # noqa: ARG002  # the protocol's
        return self

    def __iter__(self) -> Iterator[InfoObject]:
        number = 0
        while not self.cancelled.wait(0.001):
            number += 1
            found = obj("u", number)
            platform = msgspec.structs.replace(found.platform, signature=b"signed" if self.is_signed else b"")
            yield msgspec.structs.replace(found, platform=platform)

    def signing_key(self, uid: str) -> SigningKey | None:
        assert uid == "u"
        return KEY

    def cancel(self) -> None:
        self.cancelled.set()

    def status(self) -> RemoteStatus:
        raise NotImplementedError


class Said:
    """Results and queries that were said."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.is_full = False

    def say(self, message: NodeMessage, timeout: float) -> None:  # noqa: ARG002  # Network.say's
        if self.is_full:
            raise BackPressureError("full", hint="wait")
        self.bodies.append(decoded_body(message.body))


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def queries(said: Said) -> Iterator[NetworkQueries]:
    made = NetworkQueries(said.say, 30.0, answers=True)
    made.foreign = Endless()
    yield made
    made.foreign.cancel()
    made.close()


def test_who_has_left_is_answered_no_more(queries: NetworkQueries, said: Said, eventually: Callable[..., Any]) -> None:
    # Given a node that asks, and answers without end
    queries.asked(ALPHA, QueryBody(VERSION, NUMBER, QueryRequest()))
    eventually(lambda: len(said.bodies) > 10)
    # When another one leaves, expect them to go on
    queries.left(frozenset((ALPHA,)))
    count = len(said.bodies)
    eventually(lambda: len(said.bodies) > count + 10)
    # When it leaves itself, expect the end of them, which says that there may be more
    queries.left(frozenset((BRAVO,)))
    eventually(lambda: said.bodies[-1].is_last)
    assert "has left" in said.bodies[-1].lacks


def test_answers_say_once_what_a_registration_signs_with(
    queries: NetworkQueries, said: Said, eventually: Callable[..., Any]
) -> None:
    # Given a node that asks, and signed answers
    queries.foreign.is_signed = True
    queries.asked(ALPHA, QueryBody(VERSION, NUMBER, QueryRequest()))
    eventually(lambda: len(said.bodies) > 3)
    # Expect the key before the first of them, and once
    assert (said.bodies[0].signing, said.bodies[0].data) == (KEY, b"")
    assert all(each.data and each.signing is None for each in said.bodies[1:3])


def test_a_key_that_comes_behind_its_first_object_is_awaited(queries: NetworkQueries, said: Said) -> None:
    # Given a node's answer
    answers = queries.ask(QueryRequest(timeout=5.0), frozenset((ALPHA,)))
    number, uid = said.bodies[0].id, signed_uid(KEY.anchor, KEY.key)
    waiting = ThreadPoolExecutor(1)
    asked = waiting.submit(answers.signing_key, uid)
    # When the key comes, expect it for the registration that is made from it
    queries.came(ALPHA, 1, ResultBody(VERSION, number, signing=KEY))
    assert asked.result(20.0) == KEY
    # When all have answered, expect no wait for another one
    queries.came(ALPHA, 1, ResultBody(VERSION, number, is_last=True))
    assert answers.signing_key("another") is None
    waiting.shutdown()


def test_what_finds_no_room_leaves_no_query_open(
    queries: NetworkQueries, said: Said, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given answers without end, when the network takes no more of them
    queries.asked(ALPHA, QueryBody(VERSION, NUMBER, QueryRequest()))
    eventually(lambda: len(said.bodies) > 10)
    said.is_full = True
    # Expect the archive's query to be over, which is no fault of ours
    assert isinstance(queries.foreign, Endless)
    eventually(queries.foreign.cancelled.is_set)
    eventually(lambda: "is not told" in caplog.text)
    assert guard.faults() == {}


def test_others_answer_no_longer_than_is_waited_for(queries: NetworkQueries, said: Said) -> None:
    # When a query says its time-out, expect it to be asked with that; else with a bound for what is slow
    queries.ask(QueryRequest(timeout=7.0), frozenset((ALPHA,))).cancel()
    queries.ask(QueryRequest(), frozenset((ALPHA,))).cancel()
    assert [each.request.timeout for each in said.bodies] == [7.0, LONGEST_SECONDS]


def test_a_node_that_is_started_anew_while_it_answers_answers_anew(queries: NetworkQueries, said: Said) -> None:
    # Given a node that has said two of its objects, is killed and started anew, and answers again
    answers = queries.ask(QueryRequest(timeout=5.0), frozenset((ALPHA,)))
    number = said.bodies[0].id

    def came(epoch: int, at: int) -> None:
        data = b"".join(packed(obj("u", at)).in_memory().parts)
        queries.came(ALPHA, epoch, ResultBody(VERSION, number, data, count=at))

    came(1, 1)
    came(1, 2)
    came(2, 1)
    # When its last word overtakes its last objects
    queries.came(ALPHA, 2, ResultBody(VERSION, number, is_last=True, count=3))
    came(2, 2)
    came(2, 3)
    # Expect all of them, and each once
    assert [each.object_id for each in answers] == ["u-1", "u-2", "u-3"]
    assert not answers.lacks


def test_a_query_that_names_no_time_waits_for_a_node_as_long_as_it_says_something(said: Said) -> None:
    # Given a query that names no time, at a node that waits half a second for others, and two that it asks
    queries = NetworkQueries(said.say, 0.5, answers=False)
    answers = queries.ask(QueryRequest(), frozenset((ALPHA, BRAVO)))
    number = said.bodies[0].id

    def slowly() -> None:
        for at in range(1, 6):
            data = b"".join(packed(obj("u", at)).in_memory().parts)
            queries.came(ALPHA, 1, ResultBody(VERSION, number, data, count=at))
            time.sleep(0.25)  # the line is slow: in all it takes longer than that half second
        queries.came(ALPHA, 1, ResultBody(VERSION, number, is_last=True, count=5))

    # When one says something all the while, and the other one nothing
    with ThreadPoolExecutor(1) as line:
        line.submit(slowly)
        came = [each.object_id for each in answers]
    # Expect all of the one, and the other one to be named
    assert came == [f"u-{at}" for at in range(1, 6)]
    assert answers.lacks == "1 nodes have not answered in time"
    queries.close()


def test_results_of_a_node_of_an_earlier_version_that_does_not_number_them_come(
    queries: NetworkQueries, said: Said
) -> None:
    # Given a query of a node of an earlier version
    answers = queries.ask(QueryRequest(timeout=5.0), frozenset((ALPHA,)))
    number, coming = said.bodies[0].id, iter(answers)

    def came(*numbers: int) -> None:
        for at in numbers:
            data = b"".join(packed(obj("u", at)).in_memory().parts)
            queries.came(ALPHA, 1, ResultBody(VERSION, number, data))

    # When it says its results without numbers, and how many they are
    came(1, 2)
    first = next(coming)
    came(3)
    queries.came(ALPHA, 1, ResultBody(VERSION, number, is_last=True, count=3))
    # Expect them as they come
    assert [each.object_id for each in (first, *coming)] == ["u-1", "u-2", "u-3"]
    assert not answers.lacks


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_answers_of_several_nodes_come_by_time_of_publication_however_they_arrive(
    queries: NetworkQueries, said: Said, order: Literal["oldest", "newest"]
) -> None:
    # Given a query of two nodes with three objects each, of which they have one in common
    answers = queries.ask(QueryRequest(timeout=5.0, order=order), frozenset((ALPHA, BRAVO)))
    number = said.bodies[0].id
    shares = {ALPHA: [1, 3, 4], BRAVO: [2, 4, 5]}
    # When these come in any order, the ends before some, one twice
    coming = [
        (node, ResultBody(VERSION, number, b"".join(packed(published(at)).in_memory().parts), count=place))
        for node, share in shares.items()
        for place, at in enumerate(sorted(share, reverse=order == "newest"), 1)
    ]
    coming += [(node, ResultBody(VERSION, number, is_last=True, count=3)) for node in shares]
    coming.append(coming[0])
    for node, body in random.Random(7).sample(coming, len(coming)):
        queries.came(node, 1, body)
    # Expect them in their order, each once
    assert [obj.object_id for obj in answers] == [f"u-{at}" for at in sorted(range(1, 6), reverse=order == "newest")]
    assert not answers.lacks


def test_a_node_that_says_nothing_holds_others_back_no_longer_than_the_query(
    queries: NetworkQueries, said: Said
) -> None:
    # Given a query of two nodes, of which one says nothing, and the other one's second result is lost
    asked = time.monotonic()
    answers = queries.ask(QueryRequest(timeout=2.0), frozenset((ALPHA, BRAVO)))
    for at in (1, 3):
        data = b"".join(packed(published(at)).in_memory().parts)
        queries.came(ALPHA, 1, ResultBody(VERSION, said.bodies[0].id, data, count=at))
    # Expect what has come, in time for who waits for it, and behind it who is missing
    coming = iter(answers)
    assert next(coming).object_id == "u-1"
    assert time.monotonic() < asked + 2.0
    assert [obj.object_id for obj in coming] == ["u-3"]
    assert answers.lacks == "1 nodes have not answered in time"


def test_a_node_that_answers_late_finds_room_behind_others(
    queries: NetworkQueries, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a query of two nodes, of which one has said as much as is held
    monkeypatch.setattr("jbi_pubsub.node.remote_queries.FOUND_MOST", 3)
    answers = queries.ask(QueryRequest(timeout=5.0), frozenset((ALPHA, BRAVO)))
    number = said.bodies[0].id

    def came(node: bytes, *numbers: int) -> None:
        for place, at in enumerate(numbers, 1):
            data = b"".join(packed(published(at)).in_memory().parts)
            queries.came(node, 1, ResultBody(VERSION, number, data, count=place))
        queries.came(node, 1, ResultBody(VERSION, number, is_last=True, count=len(numbers)))

    came(ALPHA, 2, 3, 4)
    # When the other one, for which all wait, says what it has; Expect that first, and nothing to lack
    came(BRAVO, 1)
    assert [obj.object_id for obj in answers] == ["u-1", "u-2", "u-3", "u-4"]
    assert not answers.lacks


def test_who_asks_a_node_that_leaves_is_not_answered(queries: NetworkQueries, said: Said) -> None:
    # Given a node that answers no more, while its network is still heard
    queries.close()
    # Expect another query to be let go
    queries.asked(BRAVO, QueryBody(VERSION, NUMBER, QueryRequest()))
    assert not said.bodies


def test_answers_that_nobody_reads_are_bounded_in_bytes_and_what_lacks_is_told(
    queries: NetworkQueries, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a query whose answers nobody reads
    monkeypatch.setattr("jbi_pubsub.node.remote_queries.FOUND_BYTES", 2 << 20)
    answers = queries.ask(QueryRequest(timeout=5.0), frozenset((ALPHA,)))
    number = said.bodies[0].id
    # When more comes than there is room for
    for at in range(1, 6):
        data = b"".join(packed(obj("u", at, bytes(1 << 19))).in_memory().parts)
        queries.came(ALPHA, 1, ResultBody(VERSION, number, data, count=at))
    queries.came(ALPHA, 1, ResultBody(VERSION, number, is_last=True, count=5))
    # Expect what there was room for, and to be told that something lacks
    assert [each.object_id for each in answers] == ["u-1", "u-2", "u-3"]
    assert "waited to be read" in answers.lacks
