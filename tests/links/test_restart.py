"""A delegate that is killed and started again is used again, by nobody's doing."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.services import fetch_status

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.mark.parametrize("same_port", [True, False], ids=["same port", "another port"])
def test_publisher_and_subscriber_go_on_with_a_restarted_delegate(
    same_port: bool, scene: Any, federation: Any, figures: Any, start: Callable[..., Any]
) -> None:
    # Given a delegate as a process, a publisher, and a subscriber that has received
    scene.leases(1.0)
    flags = ["--no-multicast", "--locator", federation.lookups[0].address, "--set", "lease.lookup=1"]

    def pad(port: str) -> Any:
        process = start(*flags, "pad", "alpha", "rome", "--port", port, "--json")
        return process, process.fact()["address"]

    first, address = pad("0")
    scene.publisher = federation.light()
    at = scene.publisher.connect_to_delegate("alpha", "rome")
    scene.registration = scene.publisher.register_publisher(at, figures.schema, figures.figure_1)
    scene.subscriber = federation.subscriber()
    scene.subscription = scene.subscriber.register_subscriber(type_name=TYPE)
    assert scene.subscriber.wait_matched(scene.subscription) == 1
    scene.publish(b"before")
    assert scene.sequences(1) == [1]
    scene.publisher.flush()  # it has said that it has it: else the publisher sends it again

    # When it is killed, objects are published meanwhile, and it is started again
    first.signal(signal.SIGKILL)
    first.wait(60.0)
    scene.publish(*[b"meanwhile"] * 5)
    _, address = pad(address.rpartition(":")[2] if same_port else "0")

    # Expect that the publisher's registration and the subscription stand there
    def status() -> dict[str, Any]:
        return fetch_status(ServiceRef("", "status", (address,)), federation.config.security(), timeout=60.0)

    scene.eventually(
        lambda: len(status()["registrations"]) == len(status()["subscriptions"]) == 1, 20.0, what="both stand there"
    )
    scene.publisher.flush()

    # Expect every object once and in order: what came before the subscriber, it has caught up with
    scene.publish(b"after")
    assert scene.sequences(7) == [2, 3, 4, 5, 6, 7]
    scene.eventually(lambda: status()["delivered"] == 6)
    now = status()
    assert [r["published"] for r in now["registrations"]] == [6]
    assert now["unmatched"] == now["found_late"]
    assert now["lost"] == {}

    # Expect that the subscriber has been told of no loss: the numbers show that the first delegate held nothing for it
    assert scene.local()["lost"] == {}
