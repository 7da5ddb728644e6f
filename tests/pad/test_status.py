"""The status of a delegate fits into an answer, however much there is to tell."""

from __future__ import annotations

from typing import Any

import msgspec

from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.pad.server.exports import STATUS_ROWS, shortened
from jbi_pubsub.protocol.services import STATUS, fetch_status
from jbi_pubsub.protocol.status.delegate import DelegateStatus


def _status(sessions: int, subscriptions: int) -> DelegateStatus:
    """A status with rows such as real ones."""
    row = {"uid": "subscription-" + "0" * 32, "template": ["x" * 200], "predicate": "y" * 200, "lost": {}}
    each = max(1, subscriptions // max(1, sessions))
    queued = {f"subscription-{n:032}": n for n in range(each)}
    told = {
        "kind": "delegate",
        "address": "",
        "uptime": 1.0,
        "publishers": [],
        "registrations": [{"uid": "registration-1"}],
        "sessions": [{"session": f"session-{n}", "queued": queued} for n in range(sessions)],
        "subscriptions": [row] * subscriptions,
        "published": 7,
    }
    return converted(told, DelegateStatus)


def test_a_large_status_is_cut_and_says_how_much_there_is() -> None:
    # Given a delegate with 80,000 subscriptions of 100 processes
    status = _status(100, 80_000)
    # When its status is asked for
    said = shortened(status)
    # Expect the beginning of each list, all counts, the longest queues of each session, and what is no list as it is
    assert len(said["subscriptions"]) == STATUS_ROWS
    assert said["counts"] == {"publishers": 0, "registrations": 1, "sessions": 100, "subscriptions": 80_000}
    assert [len(s["queued"]) for s in said["sessions"]] == [50] * 100
    assert max(said["sessions"][0]["queued"].values()) == 799
    assert said["published"] == 7
    # Expect a size that goes into an answer, where the whole would not
    assert len(msgspec.msgpack.encode(status)) > 32 << 20
    assert len(msgspec.msgpack.encode(said)) < 8 << 20


def test_a_small_status_is_told_whole(federation: Any) -> None:
    pad = federation.pad()
    said = fetch_status(ServiceRef("", STATUS, (pad.address,)), Security(), timeout=60.0)
    assert said["counts"] == {"publishers": 0, "registrations": 0, "sessions": 0, "subscriptions": 0}
    assert {**said, "counts": None}.keys() == {**pad.status(), "counts": None}.keys()


def test_faults_of_threads_are_shown(federation: Any) -> None:
    # Given a step of a thread that has failed in a way nobody expected; Expect the status to say so
    pad = federation.pad()
    with guarded("a loop of the status' test"):
        raise KeyError("unexpected")
    assert pad.status()["faults"]["a loop of the status' test"] == 1
