"""What queries will stand on, shown with a cursor that stands in for an archive's: a contract of its own, turns of the
processor, and results that go to their client over the link and behind what matters more."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jbi_pubsub import Wish
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.pad.delegate import Delegate
from jbi_pubsub.pad.delivery import Deliveries
from jbi_pubsub.pad.subscription import Subscription

POLICIES = """
[[policy]]
name = "queries can wait"
action = "query"
importance = 1

[[policy]]
name = "calls"
type = "calls"
importance = 5

[[link]]
name = "downlink"
members = "action != 'publish'"
rate = "8 Mbps"
reserve = 0.0
"""
OBJECTS, GET_NEXT = 1_000, 10
REPORT = b"Nothing to report. " * 40
CALL = bytes(200_000)
"""A fifth of a second of the link."""


class Cursor:
    """Of kept objects those that a predicate is true for, GET_NEXT at a time; work for the delegate's turns."""

    def __init__(
        self, delegate: Delegate, contract: Contract, outlet: Subscription, history: Sequence[Parcel], predicate: str
    ) -> None:
        self.contract = contract
        self.fetched = 0
        """How often the next ones were asked for."""
        self.closes = False
        """After the next ones nobody wants the rest."""
        self._delegate = delegate
        self._outlet = outlet
        compiled = compile_predicate(predicate)
        self._left = [each for each in history if compiled.matches(parse_metadata(bytes(each.head.metadata)))]

    def importance(self) -> int:
        return self.contract.settings.importance

    def size(self) -> int:
        return sum(each.size for each in self._left[:GET_NEXT])

    def step(self, most: int) -> tuple[int, int, float]:
        """The next results."""
        del most
        found, self._left = self._left[:GET_NEXT], self._left[GET_NEXT:]
        self.fetched += 1
        deliveries = Deliveries()
        for parcel in found:
            self._delegate.pipeline.hand_out(parcel, [self._outlet], deliveries, filters=False)
        self._delegate.pipeline.deliver(deliveries)
        if self.closes:
            self._left = []
        return len(found), sum(each.size for each in found), 0.0


def test_results_of_a_query_go_where_what_is_published_goes_and_hold_up_nothing_that_matters_more(
    federation: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate that goes by policies about queries, and clients of calls and of half of the reports
    file = tmp_path / "policy.toml"
    file.write_text(POLICIES)
    federation.config = msgspec.structs.replace(
        federation.config, qos=QosSection(mode="on"), policy=PolicySection(file=str(file))
    )
    server, publisher, subscriber = federation.pad(), federation.light(), federation.subscriber()
    delegate = server.delegate
    place = publisher.connect_to_delegate("alpha", "rome")
    reports, calls = (
        publisher.register_publisher(place, figures.schema, figures.figure_1, type_name=name)
        for name in ("reports", "calls")
    )
    predicate = "//lat > 50"
    watched = subscriber.register_subscriber(type_name="reports", predicate=predicate)
    heard = subscriber.register_subscriber(type_name="calls")
    asked = subscriber.register_subscriber(type_name="reports", predicate="/nothing")  # its outlet is the query's
    assert [subscriber.wait_matched(uid) for uid in (watched, heard, asked)] == [1, 1, 1]

    def latency() -> float:
        """Of a call, the median of some."""
        took = []
        for _ in range(3):
            began = time.monotonic()
            publisher.publish(calls, figures.figure_1, CALL)
            assert subscriber.receive(heard, timeout=20.0) is not None
            took.append(time.monotonic() - began)
        return statistics.median(took)

    # Given reports that are kept, and what a subscription has got of them
    documents = [figures.metadata(lat=str(40 + number)) for number in range(20)]
    ids = [publisher.publish(reports, documents[number % 20], REPORT) for number in range(OBJECTS)]
    publisher.flush()
    live = [subscriber.receive(watched, timeout=20.0).object_id for _ in range(OBJECTS * 9 // 20)]
    history = [parcel for each in ids if (parcel := delegate.kept(each)) is not None]
    assert len(history) == OBJECTS
    alone = latency()

    # When somebody asks for the same, with a wish for more importance than queries have
    quality: Any = server.delegate._quality
    before = quality.status()["policy"]["contracts"]
    contract, granted = quality.opened(
        Caller("127.0.0.1:1", user="analyst"), "query", "reports", "1.0", "queue", Wish(importance=5)
    )
    assert (contract.settings.importance, contract.settings.link) == (1, "downlink")
    assert [(less.field, less.policy) for less in granted.reduced] == [("importance", "queries can wait")]
    [outlet] = [each for (_, uid), each in delegate._subscriptions.items() if uid == asked]
    session = delegate.session(outlet.owner)
    session.remove(outlet)
    outlet.contract = contract
    session.add(outlet)
    cursor = Cursor(delegate, contract, outlet, history, predicate)
    quality.tasks.submit(quality.tasks.task("query", cursor))

    # Expect calls that are published now to come nearly as soon, before all of the results have gone
    beside = latency()
    assert sum(server.status()["sessions"][0]["queued"].values()) > 0
    assert beside <= 1.5 * alone, (beside, alone)
    # Expect the results to be what the subscription has got, a few at a time, told as what they are
    found = [subscriber.receive(asked, timeout=20.0).object_id for _ in live]
    assert found == live
    assert cursor.fetched == len(live) / GET_NEXT
    told = quality.status()
    assert told["tasks"]["kinds"]["query"]["served"] == len(live)
    assert told["links"][0]["sent_by_level"][0] > 1_000 * len(live)

    # When another one is closed before its end, expect nothing of it to be left
    cursor = Cursor(delegate, contract, outlet, history, predicate)
    cursor.closes = True
    quality.tasks.submit(quality.tasks.task("query", cursor))
    eventually(lambda: quality.tasks.drain(1.0))
    session.remove(outlet)
    quality.ended(contract)
    assert cursor.fetched == 1
    assert quality.status()["policy"]["contracts"] == before
    eventually(lambda: server.status()["sessions"][0]["in_flight"] == 0)
    assert delegate._budget.used == 0
