"""Who publishes is told when his delegate goes away, and when one is there again."""

from __future__ import annotations

from typing import Any


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


def test_a_callback_that_fails_does_not_end_publishing(federation: Any, eventually: Any, caplog: Any) -> None:
    # Given
    federation.lookup()
    first = federation.pad()
    light = federation.light(away=lambda *_: 1 / 0)
    delegate = light.connect_to_delegate("alpha")
    registration = light.register_publisher(delegate, type_name="t", validate=False)
    # When
    first.stop(0.5)
    federation.pad("alpha", "naples")
    # Expect
    light.publish(registration, b"<a/>")
    light.flush(30.0)
    assert "the callback for delegates that are away failed" in caplog.text
