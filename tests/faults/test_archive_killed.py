"""A delegate with an archive, a process of its own, is killed while it is published to, and started again at once."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_what_was_acknowledged_is_found_once_after_each_kill(
    field: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with an archive, a publisher that goes on all the time, and a subscription that replays
    chance = random.Random(5)
    more = ("--archive", str(tmp_path / "archive"))
    pad = field.pad(more=more)
    light = field.light()
    delegate = light.connect_to_delegate("alpha", "rome")
    registration = light.register_publisher(delegate, figures.schema, figures.figure_1, persist=True)
    acknowledged: list[str] = []
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            sent = [light.publish(registration, figures.figure_1, b"p" * 100) for _ in range(20)]
            light.flush(60.0)
            acknowledged.extend(sent)

    publishing = threading.Thread(target=publish)
    publishing.start()
    subscriber = field.adapter()
    # When it is killed some time, and started again in its folder and at its port
    try:
        for _ in range(3):
            before = len(acknowledged)
            eventually(lambda before=before: len(acknowledged) >= before + chance.randrange(20, 400), 60.0)
            pad.signal(signal.SIGKILL)
            pad = field.pad(port=pad.port, more=more)
    finally:
        stop.set()
        publishing.join(90.0)
    # Expect all that was acknowledged to be there once, in the order of its publisher, and nothing else
    eventually(lambda: subscriber.count("Intel_Imagery") == len(acknowledged), 60.0)
    found = [obj.object_id for obj in subscriber.query("Intel_Imagery")]
    assert found == acknowledged
    assert len(acknowledged) > 100
    # and a subscription that begins with all to get the same
    replay = subscriber.register_subscriber(type_name="Intel_Imagery", start="all")
    got = [subscriber.receive(replay, 60.0) for _ in acknowledged]
    assert [obj.object_id for obj in got if obj is not None] == acknowledged
    assert field.status(pad)["archive"]["troubles"] == []
