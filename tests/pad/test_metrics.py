"""What a delegate's metrics port shows."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jbi_pubsub.core.config import ArchiveSection, MetricsSection


def scraped(port: int) -> Counter[str]:
    """The value of each metric, with all its labels together."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    seen: Counter[str] = Counter()
    for family in families:
        for sample in family.samples:
            seen[sample.name] += int(sample.value)
    return seen


@pytest.mark.row("Q-03")
def test_the_metrics_hold_the_whole_account_also_when_all_have_gone(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with metrics, an object that nobody wants, and one that a subscriber gets
    config = msgspec.structs.replace(federation.config, metrics=MetricsSection(port=0))
    pad = federation.pad("alpha", "rome", config=config)
    publisher = federation.light()
    registration = figures.register(publisher)
    publisher.publish(registration, figures.figure_1)
    publisher.flush()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid) is not None
    # When both have gone
    subscriber.close()
    publisher.close()
    eventually(lambda: not pad.status()["sessions"] and not pad.status()["publishers"])
    # Expect counters that are still there, and add up
    seen = scraped(pad.metrics.port)
    assert (seen["jbi_published_total"], seen["jbi_unmatched_total"], seen["jbi_matched_total"]) == (2, 1, 1)
    gone = seen["jbi_suppressed_total"] + seen["jbi_delivered_total"] + seen["jbi_lost_total"]
    assert seen["jbi_matched_total"] == gone + seen["jbi_in_flight"] + seen["jbi_queued"]
    assert seen["jbi_refused_total"] == 0


def test_the_archive_is_in_the_metrics(federation: Any, figures: Any, tmp_path: Path) -> None:
    # Given a delegate with an archive, and no room in it any more
    section = ArchiveSection(folder=str(tmp_path / "archive"), workers=0, full="pass", max_payload_bytes=3_400)
    config = msgspec.structs.replace(federation.config, metrics=MetricsSection(port=0), archive=section)
    pad = federation.pad("alpha", "rome", config=config)
    publisher = federation.light()
    connection = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(connection, figures.schema, figures.figure_1, persist=True)
    for _ in range(3):
        publisher.publish(registration, figures.figure_1, b"p" * 1_000)
        publisher.flush()
    # When it is asked
    with federation.subscriber() as subscriber:
        assert subscriber.count("Intel_Imagery") == 2
        assert len(list(subscriber.query("Intel_Imagery"))) == 2
    # Expect what it holds, did, and could not do
    seen = scraped(pad.metrics.port)
    assert seen["jbi_archive_position"] == 2
    assert seen["jbi_archive_not_archived_total"] == 1
    assert (seen["jbi_archive_queries_total"], seen["jbi_archive_results_total"]) == (1, 2)
    assert seen["jbi_archive_bytes"] > 2_000
