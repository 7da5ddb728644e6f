"""`jbi status`: what goes on, with rates, queues, losses and leases, for people and for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jbi_pubsub.cli.status import Servers, tables
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem


def _published(federation: Any, figures: Any) -> Any:
    """A delegate with a publisher, and a subscriber whose queue of two has lost three of five objects."""
    pad = federation.pad("alpha", "rome")
    adapter = federation.light()
    registration = figures.register(adapter)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        type_name="mil.af.rl.jbi.Intel_Imagery", predicate="/metadata", bound=2, policy="drop_newest"
    )
    assert subscriber.wait_matched(uid) == 1

    def publish(count: int) -> None:
        for _ in range(count):
            adapter.publish(registration, figures.figure_1)
        adapter.flush()

    return pad, publish, uid


def _cells(found: list[dict[str, Any]], kind: str, **options: bool) -> dict[str, object]:
    """The row of the first server of a kind, by column."""
    for columns, rows, _ in tables(found, **options):
        for row in rows:
            if row[0] == kind:
                return dict(zip(columns, row, strict=True))
    raise AssertionError(kind)


def test_what_a_delegate_does_is_shown_with_rates_from_the_second_time_on(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    pad, publish, uid = _published(federation, figures)
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    # Given a first look
    first = _cells(servers.ask(), "delegate")
    assert (first["name"], first["published"], first["lost"]) == ("alpha, rome", "0", "0")
    # When ten objects follow the two that a subscription with room for two has not consumed yet
    publish(2)
    eventually(lambda: pad.status()["delivered"] == 2)
    publish(10)
    found = servers.ask()
    # Expect counts with rates, the two that wait, the losses by cause, and both leases
    row = _cells(found, "delegate")
    assert str(row["published"]).startswith("12 (")
    assert str(row["published"]).endswith("/s)")
    assert row["queued"] == 2
    assert row["lost"] == "queue_overflow 8"
    assert (row["unmatched"], row["matched"], row["suppressed"]) == ("0", "12", "0")
    assert row["leases"] == 2
    assert (row["registrations"], row["subscriptions"]) == (1, 1)
    [rates] = [facts["rates"] for facts in found if facts["kind"] == "delegate"]
    assert rates["published"] > 0
    # Expect the subscription with its own account
    details = list(tables(found, subscriptions=True))[-1]
    assert details[1] == [
        (uid.removeprefix("subscription-")[:12], "/metadata", "", "drop_newest 2", 12, 0, 2, 2, "queue_overflow 8")
    ]
    # Expect the lookup service in a table of its own
    lookup = _cells(found, federation.lookups[0].info().service_id[:8])
    assert lookup["items"] == 2
    assert lookup["leases"] == 2 + lookup["listeners"]  # type: ignore[operator]  # an int
    assert lookup["disk"] == "-"


def test_what_is_sent_and_not_acknowledged_is_shown_beside_what_waits() -> None:
    # Expect each row to add up: matched = suppressed + delivered + queued + sent + lost
    facts = {
        "kind": "delegate", "name": "a", "location": "b", "address": "x:1", "uptime": 1.0, "leases": 2, "mail":
        {"fault": "", "queued": 0}, "counts": {"registrations": 1, "subscriptions": 1}, "published": 9, "unmatched": 1,
        "matched": 8, "suppressed": 1, "delivered": 2, "queued": 1, "in_flight": 3, "lost": {"queue_overflow": 1},
    }  # fmt: skip
    assert _cells([facts], "delegate")["queued"] == "1 + 3 sent"


def test_a_server_that_is_gone_is_shown_as_such(federation: Any, eventually: Callable[..., Any]) -> None:
    pad = federation.pad("alpha", "rome")
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    assert _cells(servers.ask(), "delegate")["address"] == pad.address
    # When its port is closed while the lookup service still lists it
    pad._endpoint.stop()
    assert _cells(servers.ask(), "unreachable")["address"] == pad.address


def test_services_of_other_kinds_are_not_asked(federation: Any) -> None:
    # Given a delegate, and a service that is none of ours, in the same lookup service
    federation.pad("alpha", "rome")
    community = JoinManager(federation.config, name="sensors")
    federation.stack.callback(community.close)
    community.join(ServiceItem("s" * 32, ("org.example.Sensor",), ServiceRef("s" * 32, "sensor", ("127.0.0.1:1",))))
    community.wait_joined("s" * 32, 5.0)
    # Expect it not to be called, and so not to be called unreachable
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    assert [facts["kind"] for facts in servers.ask()] == ["lookup", "delegate"]


def test_watching_says_so_again_and_again(federation: Any, figures: Any, said: Callable[..., Any]) -> None:
    pad, publish, _ = _published(federation, figures)
    publish(3)
    # When a script watches, expect a JSON document a line, with rates from the second one on
    watching = said("--no-multicast", "status", pad.address, "--watch", "--json", "--count", "2", "--every", "0.1")
    first, second = (json.loads(line)["servers"][0] for line in watching.out.splitlines())
    assert first["published"] == second["published"] == 3
    assert "rates" not in first
    assert second["rates"]["published"] == 0.0
    # When somebody pipes it, expect plain tables, tab-separated
    plain = said("--no-multicast", "status", pad.address, "--watch", "--count", "2", "--every", "0.1").out
    lines = [line.split("\t") for line in plain.splitlines() if line.startswith("delegate")]
    assert [line[6] for line in lines] == ["3", "3 (0.0/s)"]
