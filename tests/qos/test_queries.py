"""Results of a query beside what is published: a contract of its own, and the link behind what matters more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Wish
from jbi_pubsub.core.config import ArchiveSection, PolicySection, QosSection

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
rate = "{rate}"
reserve = 0.0
"""
OBJECTS, SUBSCRIPTIONS = 500, 50
REPORT = b"Nothing to report. " * 160
"""Eight take a second of a slow link."""
CALL = bytes(10_000)
"""Less than half a second of it."""


@pytest.mark.row("Q-07", "Q-49")
def test_results_of_a_query_go_where_what_is_published_goes_and_hold_up_nothing_that_matters_more(
    federation: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with an archive that goes by policies about queries, and clients of calls
    file = tmp_path / "policy.toml"
    file.write_text(POLICIES.format(rate="200 kbps"))
    federation.config = msgspec.structs.replace(
        federation.config,
        qos=QosSection(mode="on"),
        policy=PolicySection(file=str(file)),
        archive=ArchiveSection(folder=str(tmp_path / "archive"), reserve=0.0, memory=64 << 20),
    )
    server, publisher, subscriber = federation.pad(), federation.light(), federation.subscriber()
    place = publisher.connect_to_delegate("alpha", "rome")
    reports, calls = (
        publisher.register_publisher(place, figures.schema, figures.figure_1, type_name=name, persist=persist)
        for name, persist in (("reports", True), ("calls", None))
    )
    heard = subscriber.register_subscriber(type_name="calls")
    assert subscriber.wait_matched(heard) == 1

    def sent(level: int) -> int:
        """Bytes over the link."""
        return int(server.status()["qos"]["links"][0]["sent_by_level"][level])

    # Given reports that are archived
    ids = [publisher.publish(reports, figures.figure_1, REPORT) for _ in range(OBJECTS)]
    publisher.flush(60.0)
    # When somebody asks for all of them, with a wish for more importance than queries have
    before = sent(0)
    query = subscriber.open_query("reports", qos=Wish(importance=5))
    first = query.get_next(1)
    for _ in range(3):
        publisher.publish(calls, figures.figure_1, CALL)
        assert subscriber.receive(heard, timeout=60.0) is not None
    # Expect calls that are published meanwhile to come before most of the results have gone
    assert query.state == "running"
    assert sent(0) - before < 90 * len(REPORT)  # of the hundred that go before any is taken
    # When the link gets wider
    file.write_text(POLICIES.format(rate="8 Mbps"))
    # Expect all of the results, each over the same link, at the level of queries
    assert [obj.object_id for obj in [*first, *query]] == ids
    assert query.state == "finished"
    assert OBJECTS * len(REPORT) < sent(0) - before < 1.2 * OBJECTS * (len(REPORT) + len(figures.figure_1) + 300)


@pytest.mark.row("Q-11")
def test_a_publication_has_as_many_takers_as_subscriptions_and_a_query_as_many_results_as_it_finds(
    federation: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with an archive and quality of service, fifty subscriptions
    federation.config = msgspec.structs.replace(
        federation.config,
        qos=QosSection(mode="on"),
        archive=ArchiveSection(folder=str(tmp_path / "archive"), reserve=0.0, workers=0, memory=64 << 20),
    )
    server, publisher, subscriber = federation.pad(), federation.light(), federation.subscriber()
    place = publisher.connect_to_delegate("alpha", "rome")
    reports = publisher.register_publisher(place, figures.schema, figures.figure_1, persist=True)
    live = [subscriber.register_subscriber(type_name="Intel_Imagery") for _ in range(SUBSCRIPTIONS)]
    for uid in live:
        assert subscriber.wait_matched(uid) == 1

    def delivered() -> int:
        return sum(each["delivered"] for each in server.status()["subscriptions"])

    # When one object is published; Expect it to be handed to each of them
    publisher.publish(reports, figures.figure_1)
    assert all(subscriber.receive(uid, 60.0) for uid in live)
    eventually(lambda: delivered() == SUBSCRIPTIONS)
    for uid in live:
        subscriber.cancel_subscription(uid)
    # When a query finds many; Expect so many results to be handed to it, and to nobody else
    for _ in range(OBJECTS - 1):
        publisher.publish(reports, figures.figure_1)
    publisher.flush(60.0)
    assert len(list(subscriber.query("Intel_Imagery"))) == OBJECTS
    assert server.status()["archive"]["queries"]["results"] == OBJECTS
    assert delivered() == 0
