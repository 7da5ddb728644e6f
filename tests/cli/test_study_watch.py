"""A federation that is watched: what its delegates have accounted for is what the watch has counted."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(280)
def test_a_live_watch_counts_what_delegates_deliver_until_ctrl_c(
    federation: Any, figures: Any, flags: list[str], start: Callable[..., Any], tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    alpha = federation.pad("alpha", "rome")
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = publisher.register_publisher(
        publisher.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    mine = {subscriber.register_subscriber(), subscriber.register_subscriber(predicate="//lat > 33.0")}
    assert [subscriber.wait_matched(each, 1) for each in mine] == [1, 1]
    out = tmp_path / "out"
    told = start(
        *flags, "study", "watch", "--live", "--data", str(tmp_path / "data"), "--out", str(out), "--json",
        "--every", "0.5", "--window", "3600",
    )  # fmt: skip
    eventually(lambda: len(alpha.status()["subscriptions"]) == 3, 120.0)

    for number in range(6):
        publisher.publish(registration, figures.metadata(lat=f"{32.8 + number / 10:.1f}"), b"<p/>")
    publisher.flush()

    def counted() -> int:
        state = out / "state.json"
        return int(json.loads(state.read_text())["publications"]) if state.is_file() else 0

    eventually(lambda: counted() == 6, 120.0)
    told.signal(signal.SIGINT)
    assert told.wait(60.0) == 130
    delivered = sum(s["delivered"] for s in alpha.status()["subscriptions"] if s["uid"] in mine)
    assert json.loads((out / "result.json").read_text())["numbers"]["deliveries"] == delivered == 9
    assert json.loads((tmp_path / "data" / "manifest.json").read_text())["state"] == "complete"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(580)
def test_a_live_watch_that_is_killed_takes_its_tap_with_it_and_goes_on_also_without_its_delegate(
    federation: Any, figures: Any, flags: list[str], start: Callable[..., Any], tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    alpha, bravo = federation.pad("alpha", "rome"), federation.pad("bravo", "paris")
    publisher = federation.light()
    one, other = (
        publisher.register_publisher(publisher.connect_to_delegate(*at), figures.schema, figures.figure_1)
        for at in (("alpha", "rome"), ("bravo", "paris"))
    )
    data, out = tmp_path / "data", tmp_path / "out"

    def watch() -> Any:
        told = start(
            *flags, "study", "watch", "--live", "--data", str(data), "--out", str(out), "--json",
            "--every", "0.5", "--window", "3600",
        )  # fmt: skip
        eventually(lambda: len(bravo.status()["subscriptions"]) == 1, 120.0)
        return told

    def counted() -> int:
        state = out / "state.json"
        return int(json.loads(state.read_text())["publications"]) if state.is_file() else 0

    def published(registration: str, number: int) -> None:
        for _ in range(number):
            publisher.publish(registration, figures.metadata(), b"<p/>")
        publisher.flush()

    # When it is killed with what it has tapped not counted yet
    first = watch()
    published(one, 3)
    published(other, 2)
    eventually(lambda: sum(s["delivered"] for pad in (alpha, bravo) for s in pad.status()["subscriptions"]) == 5)
    first.signal(signal.SIGKILL)
    eventually(lambda: json.loads((data / "manifest.json").read_text())["state"] == "complete", 60.0)
    eventually(lambda: len(bravo.status()["subscriptions"]) == 0, 60.0)

    # and goes on, and one of its delegates ends meanwhile, and comes again
    second = watch()
    eventually(lambda: counted() == 5, 120.0)
    alpha.stop(0.5)
    published(other, 4)
    eventually(lambda: counted() == 9, 120.0)
    again = federation.pad("alpha", "rome")
    eventually(lambda: len(again.status()["subscriptions"]) == 1, 60.0)
    new = publisher.connect_to_delegate("alpha", "rome")
    published(publisher.register_publisher(new, figures.schema, figures.figure_1), 2)

    # Expect each to be counted once
    eventually(lambda: counted() == 11, 120.0)
    second.signal(signal.SIGINT)
    assert second.wait(60.0) == 130
    assert json.loads((out / "result.json").read_text())["numbers"]["publications"] == 11
