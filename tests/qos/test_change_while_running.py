"""A mission changes while it runs: the three steps of the paper's demonstration, and the role that changes, told to a
policy manager, seen at the applications' end (QED, sections III and IV)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import ClientSection, QosSection
from jbi_pubsub.policy.server import PolicyServer

FILE = """
[space]
strategy = "strict"

[role]
"Patrol-1" = "patrol"

[preference.Small]
shape = "truncate 100"

[[policy]]
name = "images"
type = "images"
importance = 3

[[policy]]
name = "patrols"
role = "patrol"
type = "calls"
importance = 1

[[policy]]
name = "close air support"
role = "cas"
type = "calls"
importance = 5

[[link]]
name = "satcom"
members = "action == 'subscribe'"
rate = "80 Mbps"
"""
IMAGE = b"an image, as text, which can be made smaller everywhere. " * 350


@pytest.mark.row("Q-35", "Q-52", "Q-53", "Q-54")
def test_what_a_mission_needs_is_so_soon(
    federation: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(FILE)
    server = PolicyServer(federation.config, file)
    federation.stack.callback(server.stop)
    server.start()
    pad = federation.pad(config=msgspec.structs.replace(federation.config, qos=QosSection(mode="on")))
    eventually(lambda: pad.status()["qos"]["policy"]["version"] == 1)

    def steer(key: str, value: str) -> None:
        server.change(lambda space, now: space.proposed_value(key, value, "me", "", now))

    # Given a patrol that gets images and calls, all over one link
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    images, calls = (
        publisher.register_publisher(delegate, figures.schema, figures.figure_1, type_name=name)
        for name in ("images", "calls")
    )
    patrol = federation.subscriber(msgspec.structs.replace(federation.config, client=ClientSection(user="Patrol-1")))
    seen = patrol.register_subscriber(type_name="images")
    heard = patrol.register_subscriber(type_name="calls")
    assert (patrol.wait_matched(seen), patrol.wait_matched(heard)) == (1, 1)

    def image() -> int:
        publisher.publish(images, figures.figure_1, IMAGE)
        return len(patrol.receive(seen, timeout=60.0).payload)

    # When preferences change, expect the next images to be small, and whole again
    assert image() == len(IMAGE)
    steer("policy.images.preference", "Small")
    eventually(lambda: image() <= 100)
    steer("policy.images.preference", "Default")
    eventually(lambda: image() == len(IMAGE))

    # When the link becomes narrow, and images fill it for a minute
    steer("link.satcom.rate", "200 kbps")
    eventually(lambda: pad.status()["qos"]["links"][0]["limit"] == 25_000)
    for _ in range(80):
        publisher.publish(images, figures.figure_1, IMAGE)
    publisher.flush()
    for _ in range(5):
        publisher.publish(calls, figures.figure_1)
    publisher.flush()

    # Expect the patrol's calls to wait behind them, as it is no more than a patrol
    time.sleep(1.0)
    assert patrol.receive(heard, timeout=0.0) is None

    # When it calls for close air support, expect what waits to come, and what follows to come at once
    steer("role.Patrol-1", "cas")
    for _ in range(5):
        assert patrol.receive(heard, timeout=60.0) is not None
    for _ in range(20):
        publisher.publish(calls, figures.figure_1)
        assert patrol.receive(heard, timeout=60.0) is not None
    # while images go on to fill the link
    assert pad.status()["qos"]["links"][0]["backlog"] > 100_000

    # When images become what matters most, and calls less
    steer("policy.images.importance", "4")
    steer("role.Patrol-1", "patrol")
    eventually(
        lambda: (
            sorted(each.contract.settings.importance for each in pad.delegate.tables.subscriptions.values()) == [1, 4]
        )
    )
    publisher.publish(calls, figures.figure_1)
    publisher.flush()
    time.sleep(1.0)
    assert patrol.receive(heard, timeout=0.0) is None
