"""Servers as processes: any number, stopped by SIGTERM, nothing left in the lookup service."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("server", ["lookup", "pad"])
def test_a_server_ends_by_a_signal_with_code_0_and_without_a_word(server: str, number: int, field: Any) -> None:
    # Given a server that is ready
    party = getattr(field, server)()

    # When it gets the signal
    party.process.signal(number)
    _, said = party.process.communicate(timeout=60.0)

    # Expect exit code 0 and no traceback
    assert (party.process.returncode, said) == (0, "")


def test_a_delegate_in_use_ends_by_sigterm_with_code_0(field: Any, federation: Any, figures: Any) -> None:
    # Given a delegate with a publisher process and a subscriber that has received from it
    pad = field.pad()
    publisher = field.publisher()
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(subscription) == 1
    publisher.ask(1)
    assert subscriber.receive(subscription) is not None

    # When it is stopped
    pad.process.signal(signal.SIGTERM)
    _, said = pad.process.communicate(timeout=60.0)

    # Expect exit code 0 and no traceback, and nothing of it in the lookup service at once
    assert (pad.process.returncode, said) == (0, "")
    assert federation.lookups[0].status()["items"] == 0


@pytest.mark.row("J-61")
def test_ten_delegates_are_found_and_leave_the_lookup_service_clean(field: Any, federation: Any) -> None:
    # Given ten delegates as processes, under leases that outlive the test
    field.leases(lookup=60.0)
    begun = [field.jbi("pad", f"pad{n}", "rome", "--json") for n in range(10)]
    ready = {process.fact()["id"] for process in begun}

    # Expect that all are found
    community = field.community()
    cache = community.watch(ServiceTemplate(types=(PAD_TYPE,)))
    assert {item.service_id for item in cache.wait(10, 60.0)} == ready
    assert len(ready) == 10

    # When all get SIGTERM
    for process in begun:
        process.signal(signal.SIGTERM)

    # Expect exit code 0 of each, and an empty lookup service although no lease has run out
    assert [process.wait(60.0) for process in begun] == [0] * 10
    assert federation.lookups[0].status()["items"] == 0
    assert federation.lookups[0].status()["expired"] == 0
