"""The suite keeps to itself: whatever runs on the host, and whatever its user has configured, is not met by a test."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from jbi_pubsub.core.config import LookupSection, effective
from jbi_pubsub.lookup.client import multicast
from jbi_pubsub.lookup.client.multicast import SERVICE_TYPE


def test_nothing_is_looked_for_but_what_a_test_has_started(start: Callable[..., Any], world: str) -> None:
    # Given no settings of a test's own; Expect none of the user's, and a group that nobody else is in
    assert [name for name in os.environ if name.startswith("JBI_")] == ["JBI_CONFIG"]
    lookup = effective().lookup
    assert (lookup.groups, lookup.locators, lookup.multicast) == ((world,), (), False)
    # Expect the same of a process
    out, _ = start("config", "--json").communicate()
    shown = json.loads(out)
    assert [shown[f"lookup.{key}"]["value"] for key in ("groups", "locators", "multicast")] == [[world], [], False]


def test_the_service_type_of_mdns_is_the_runs_own(world: str) -> None:
    # Given the type under which lookup services announce themselves (docs/lookup.md), expect another one in the tests
    assert SERVICE_TYPE == "_jbi-lookup._tcp.local."
    own = f"_jbi-{world.removeprefix('test-')}._tcp.local."
    assert own == multicast.SERVICE_TYPE


def test_who_asks_at_the_usual_port_is_caught(fixtures: Any, request: pytest.FixtureRequest) -> None:
    # Given a party that asks where anybody's lookup service may be
    sys.audit("socket.connect", None, ("127.0.0.1", LookupSection().port))
    # Expect the test that it belongs to to be named
    assert request.node.name in fixtures.STRANGERS.pop()


@pytest.mark.parametrize("is_unit", [True, False])
def test_who_says_that_it_opens_nothing_is_taken_at_its_word(fixtures: Any, is_unit: bool) -> None:
    # Given a test that is marked `unit`, or not
    item = Mock(stash={})
    item.get_closest_marker.return_value = is_unit or None
    next(fixtures.pytest_runtest_setup(item))
    running = fixtures.pytest_runtest_call(item)
    next(running)
    # When it opens a socket, expect it to fail if it is
    socket.socket().close()
    with pytest.raises(AssertionError if is_unit else StopIteration, match="socket" if is_unit else None):
        next(running)


@pytest.mark.parametrize("was_there", [False, True])
def test_what_other_threads_start_is_not_the_test_s(fixtures: Any, was_there: bool) -> None:
    # Given a thread of before, or of the test's own, that starts another one, which opens a socket
    item, goes_on = Mock(stash={}), threading.Event()

    def start_another() -> None:
        goes_on.wait(60.0)
        another = threading.Thread(target=lambda: socket.socket().close())
        another.start()
        another.join(60.0)

    thread = threading.Thread(target=start_another)
    if was_there:
        thread.start()
    next(fixtures.pytest_runtest_setup(item))
    running = fixtures.pytest_runtest_call(item)
    next(running)
    if not was_there:
        thread.start()
    goes_on.set()
    thread.join(60.0)
    # Expect it to be taken for the test's in the second case alone
    with pytest.raises(StopIteration if was_there else AssertionError):
        next(running)
