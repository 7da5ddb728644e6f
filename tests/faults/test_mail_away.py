"""A mail server that can't be reached, or never says a word."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

TYPE = "mil.af.rl.jbi.Intel_Imagery"
TRY_SECONDS = 1.0


@pytest.fixture(params=["closed", "silent"])
def mail_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that is closed, or one that accepts connections and then is silent."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def federation(mail_port: int, federation: Any) -> Any:
    """The federation, whose parties use that server."""
    mail = msgspec.structs.replace(federation.config.mail, port=mail_port, timeout=TRY_SECONDS)
    federation.config = msgspec.structs.replace(federation.config, mail=mail)
    return federation


def lost(publishing: Any, subscription: str) -> dict[str, int]:
    """What the dissemination node counts as lost for a subscription."""
    [status] = [s for s in publishing.status()["subscriptions"] if s["uid"] == subscription]
    return dict(status["lost"])


@pytest.mark.row("J-88")
def test_a_mail_server_that_does_not_answer_does_not_delay_direct_delivery_and_counts_as_loss(
    publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription delivered both ways and a directly delivered one
    subscriber = federation.subscriber()
    both = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",), direct=True)
    direct = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(both) == 1
    assert subscriber.wait_matched(direct) == 1

    # When objects are published one by one, expect them directly at once (one try of a mail alone may take TRY_SECONDS;
    # on a busy machine one of the three may do)
    latencies = []
    for _ in range(3):
        began = time.monotonic()
        sent = publishing.publish(registration, figures.figure_1)
        assert subscriber.receive(both).object_id == sent
        assert subscriber.receive(direct).object_id == sent
        latencies.append(time.monotonic() - began)
    assert min(latencies) < TRY_SECONDS

    # Expect each mail to end as a loss after its bounded tries, counted at the node and told to the subscription
    eventually(lambda: lost(publishing, both) == {"mail_unreachable": 3}, what=lambda: lost(publishing, both))
    eventually(lambda: subscriber.losses(both) == {"mail_unreachable": 3}, what=lambda: subscriber.losses(both))
    assert lost(publishing, direct) == {}
