"""Who publishes is told when his delegate goes away, and when one is there again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import ClientSection


def test_a_publisher_is_told_when_its_delegate_stops_and_when_another_takes_over(
    federation: Any, eventually: Any
) -> None:
    # Given
    federation.lookup()
    first = federation.pad()
    told: list[tuple[str, str]] = []
    light = federation.light(away=lambda delegate, why: told.append((delegate, why)))
    delegate = light.connect_to_delegate("alpha")
    # When
    first.stop(0.5)
    # Expect: once, with the reason
    eventually(lambda: told)
    # When
    federation.pad("alpha", "naples")
    # Expect
    eventually(lambda: len(told) == 2)
    assert [each for each, _ in told] == [delegate, delegate]
    assert told[0][1] != ""
    assert told[1][1] == ""


@pytest.mark.parametrize("mistake", [ZeroDivisionError(), SystemExit(3), asyncio.CancelledError()])
def test_a_callback_that_fails_does_not_end_publishing(
    mistake: BaseException, federation: Any, eventually: Any, caplog: Any
) -> None:
    def away(_delegate: str, _why: str) -> None:
        raise mistake

    # Given
    federation.lookup()
    first = federation.pad()
    light = federation.light(away=away)
    delegate = light.connect_to_delegate("alpha")
    registration = light.register_publisher(delegate, type_name="t", validate=False)
    # When
    first.stop(0.5)
    federation.pad("alpha", "naples")
    # Expect
    light.publish(registration, b"<a/>")
    light.flush(30.0)
    assert "the callback for delegates that are away failed" in caplog.text


def test_a_callback_may_close_the_adapter(federation: Any) -> None:
    # Given a delegate that refuses an object, and a publisher that closes when it is told
    federation.lookup()
    federation.pad(config=msgspec.structs.replace(federation.config, client=ClientSection(max_payload=1000)))
    closed = threading.Event()

    def refused(_uid: str, _why: Exception) -> None:
        light.close(60.0)
        closed.set()

    light = federation.light(refused=refused)
    registration = light.register_publisher(light.connect_to_delegate("alpha"), type_name="t", validate=False)
    # When
    light.publish(registration, b"<a/>", bytes(2000))
    # Expect it to be closed without waiting for what comes after the callback (the fixture: no thread of it is left)
    assert closed.wait(30.0)
