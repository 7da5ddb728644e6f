"""`jbi status`: what goes on, with rates, queues, losses and leases, for people and for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.cli.show import drawn
from jbi_pubsub.cli.status import Servers, checked, tables
from jbi_pubsub.core.errors import AccessDeniedError, ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import PAD_TYPE


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


def _cells(found: list[dict[str, Any]], head: str, first: str = "") -> dict[str, object]:
    """By column, the row that begins with `first` of the table whose first column has that head."""
    table = next(table for table in tables(found) if table.columns[0].head == head)
    row = next(row for row in table.rows if str(row[0]).startswith(first))
    return dict(zip((column.head for column in table.columns), row, strict=True))


def test_what_a_delegate_does_is_shown_with_rates_from_the_second_time_on(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    pad, publish, uid = _published(federation, figures)
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    # Given a first look
    first = servers.ask()
    assert _cells(first, "kind", "delegate")["name"] == "alpha, rome"
    row = _cells(first, "objects at")
    assert (row["objects at"], row["published"], row["lost"]) == ("alpha, rome", "0", "0")
    # When ten objects follow the two that a subscription with room for two has not consumed yet
    publish(2)
    eventually(lambda: pad.status()["delivered"] == 2)
    publish(10)
    found = servers.ask()
    # Expect counts with rates, the two that wait, the losses by cause, and both leases
    row = _cells(found, "objects at")
    assert (row["published"], row["waiting"], row["lost"]) == ("12", "2", "8")
    assert float(str(row["in/s"]).replace(",", "")) > 0
    assert _cells(found, "lost at") == {"lost at": "alpha, rome", "cause": "queue_overflow", "objects": "8"}
    assert (row["unmatched"], row["matched"], row["suppressed"], row["sent"]) == ("0", "12", "0", "0")
    row = _cells(found, "kind", "delegate")
    assert (row["leases"], row["regs"], row["subs"], row["mail"]) == (2, 1, 1, "0")
    # Expect the subscription with its own account
    details = list(tables(found, subscriptions=True))[-1]
    assert details.rows == [(uid, "/metadata", "", "drop_newest 2", 12, 0, 2, 2, "queue_overflow 8")]
    # Expect the lookup service in a table of its own
    lookup = _cells(found, "lookup at")
    assert (lookup["items"], lookup["disk"]) == ("2", "-")
    row = _cells(found, "kind", "lookup")
    assert (row["name"], row["address"]) == (federation.config.lookup.groups[0], federation.lookups[0].address)
    assert row["leases"] == 2 + int(str(lookup["listeners"]))


DELEGATE = {
    "kind": "delegate", "name": "alpha", "location": "rome", "address": "127.0.0.1:40123", "uptime": 93_784.0,
    "leases": 12, "mail": {"fault": "", "queued": 126}, "counts": {"registrations": 9_999, "subscriptions": 123_456},
    "published": 1_234_567, "unmatched": 1_234_567, "matched": 2_345_678, "suppressed": 4_567, "delivered": 2_345_678,
    "queued": 12_345, "in_flight": 1_234, "lost": {"queue_overflow": 1_204, "missed": 3},
}  # fmt: skip
LOOKUP = {
    "kind": "lookup", "id": "0123456789abcdef", "address": "127.0.0.1:4160", "groups": ["", "lab"], "uptime": 3_784.0,
    "items": 100_000, "event_registrations": 10_000, "lookups": 1_234_567, "changes": 1_234_567, "events": 1_234_567,
    "events_lost": 12, "store": None,
}  # fmt: skip
TLS = {"tls": {"identity": "x", "until": 1.8e9, "days": 3.0, "ends_soon": True, "revoked": False}}
NEWER = {"kept": {"objects": 120_000, "bytes": 268_435_456}, "faults": {"lease reaper": 2}}
RATES = {"rates": {"published": 12_345.6, "delivered": 12_345.6, "lookups": 1_234.5, "events": 1_234.5}}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("more", [{}, NEWER, RATES, NEWER | RATES], ids=["once", "newer", "rates", "all"])
def test_the_tables_fit_the_terminal(width: int, more: dict[str, Any]) -> None:
    # Given a lookup service and a delegate with seven-digit counts, and one that does not answer
    gone = {"kind": "unreachable", "name": "", "address": "127.0.0.1:40199", "error": "gone"}
    found = [LOOKUP | more, DELEGATE | more, gone]
    lines = "\n".join(drawn(table, width=width) for table in tables(found)).splitlines()
    # Expect no line to be wider than the terminal, no row to be folded or cut, and the essential columns to be there
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if "alpha, rome" in line]) == (6 if "faults" in more else 5)
    assert not [line for line in lines if "…" in line]
    heads = " ".join(lines)
    for essential in ("published", "matched", "delivered", "waiting", "lost", "1,234,567", "missed", "queue_overflow"):
        assert essential in heads
    assert ": alpha, rome" not in heads, "one row for a server"
    if width == 120 and not more:
        assert "no room" not in heads
    if "kept" in more:
        assert width == 80 or "268 MB" in heads
        assert "lease reaper" in heads


AWAY = "[Errno 111] Error connecting to 127.0.0.1 on port 2525"


def test_the_account_of_mail_is_shown_with_what_is_wrong_whole() -> None:
    # Given mails that wait for a server that is away
    facts = DELEGATE | {"mailed": 7_654_321, "mail": {"fault": "", "away": AWAY, "queued": 126, "oldest": 7_500.0}}
    row = _cells([facts], "mail at")
    told = {"mailed": "7,654,321", "waiting": "126 (2h05m)", "what is wrong": AWAY}
    assert row == {"mail at": "alpha, rome", **told}
    [table] = [table for table in tables([facts]) if table.columns[0].head == "mail at"]
    assert "Error connecting to 127.0.0.1" in drawn(table, width=80)
    # When nothing waits any more; Expect nothing to be wrong, whatever the last try said
    facts["mail"] = {"fault": "", "away": AWAY, "queued": 0}
    assert AWAY not in str(list(tables([facts])))
    # When the disk is broken; Expect it to be told, as what comes next can't be kept
    facts["mail"] = {"fault": "disk full", "away": AWAY, "queued": 0}
    assert _cells([facts], "mail at")["what is wrong"] == "disk full"
    # When nothing was ever mailed; Expect no table
    facts = DELEGATE | {"mailed": 0, "mail": {"fault": "", "away": "", "queued": 0}}
    assert "mail at" not in [table.columns[0].head for table in tables([facts])]


def test_a_certificate_is_shown_when_it_ends_soon() -> None:
    # Given a server with a certificate
    tls = {"identity": "pad.example", "until": 1_800_000_000.0, "days": 61.5, "ends_soon": False, "revoked": False}
    assert "certificate at" not in [table.columns[0].head for table in tables([DELEGATE | {"tls": tls}])]
    # When it ends soon, or is revoked; Expect that to be told, with what to do
    for wrong, told in (("ends_soon", "it ends soon: jbi certs renew"), ("revoked", "it is revoked")):
        row = _cells([DELEGATE | {"tls": tls | {wrong: True}}], "certificate at")
        assert row == {
            "certificate at": "alpha, rome", "of": "pad.example", "until": "2027-01-15", "days": "61.5",
            "what is wrong": told,
        }  # fmt: skip
    # Expect it among all that there is
    assert "certificate at" in [table.columns[0].head for table in tables([DELEGATE | {"tls": tls}], whole=True)]


@pytest.mark.parametrize(
    ("options", "policy", "delivered", "waiting"),
    [
        ({"direct": True, "recipients": []}, "drop_oldest 10", 5, 4),
        ({"direct": False, "recipients": ["a@x.org"]}, "e-mail", "3 mailed", 6),
        ({"direct": True, "recipients": ["a@x.org"]}, "drop_oldest 10", "5 + 3 mailed", 6),
    ],
    ids=["queue", "e-mail", "both"],
)
def test_email_subscriptions_are_marked_as_such(
    options: dict[str, Any], policy: str, delivered: object, waiting: int
) -> None:
    subscription = {
        "uid": "subscription-1", "predicate": "", "filter": "", "policy": "drop_oldest", "bound": 10, "matched": 9,
        "suppressed": 0, "delivered": 5, "mailed": 3, "mail_waiting": waiting - 4, "lost": {}, **options,
    }  # fmt: skip
    sessions = [{"queued": {"subscription-1": 4}}]
    *_, table = tables([DELEGATE | {"subscriptions": [subscription], "sessions": sessions}], subscriptions=True)
    row = dict(zip((column.head for column in table.columns), table.rows[0], strict=True))
    assert (row["policy"], row["delivered"], row["waiting"]) == (policy, delivered, waiting)
    assert str(delivered) in drawn(table, width=80)


def test_the_address_of_a_peer_is_whole_while_other_columns_can_go() -> None:
    # Given a peer publisher watched in 80 columns
    peer = DELEGATE | {"kind": "peer", "address": "127.0.0.1:40123", "published": 12_345, "matched": 12_345}
    peer |= {"unmatched": 12_345, "delivered": 12_345} | RATES
    [table] = [table for table in tables([peer]) if table.columns[0].head == "objects at"]
    for width in (60, 80, 87):  # in the last there is room for what can go, if the address is cut
        lines = drawn(table, width=width).splitlines()
        assert "127.0.0.1:40123" in lines[2]
        assert max(map(len, lines)) <= width
    # When even that does not do, expect it to be cut where it says least, and a row to stay a row
    assert "127.0.…:40123" in drawn(table, width=58).splitlines()[2]


JUNK = (None, 7, -1.5, float("nan"), "text", b"bytes", [], [1, "x"], {}, {"a": [1]}, 2**63)


WAY = {"from": "a", "to": "b", "listening": True, "waiting": 0, "troubles": 0}
WAY |= dict.fromkeys(("registrations", "relayed", "filtered", "lost"), 3)
FOREIGN = {"kind": "bridge", "name": "a-b", "sides": {"a": True, "b": False}, "directions": [WAY, WAY]}
BRIDGE = DELEGATE | {"kind": "peer", "foreign": FOREIGN}


@pytest.mark.parametrize(
    "facts",
    [DELEGATE | NEWER | TLS, LOOKUP | NEWER, DELEGATE | {"node": "0" * 32}, BRIDGE],
    ids=["delegate", "lookup", "node", "bridge"],
)
def test_a_status_that_no_server_of_ours_has_is_an_error_of_ours(facts: dict[str, Any]) -> None:
    # Given what a server says of itself, of which one thing is missing, or something else, or all is
    whole = facts | {"sessions": [], "subscriptions": []}
    assert checked(whole, "h:1") == whole
    refused = 0
    without = [{name: value for name, value in whole.items() if name != gone} for gone in whole]
    for said in ({}, *without, *(whole | {name: junk} for name in whole for junk in (*JUNK, [{}], [{"uid": 1}]))):
        # When it is to be shown; Expect it to be, in tables and rates, or our error
        try:
            shown = checked(said, "h:1")
        except ProtocolError:
            refused += 1
        else:
            for table in tables([shown], subscriptions=True):
                drawn(table, width=100)
    assert refused >= len(without)


def test_what_a_bridge_says_of_its_directions_may_be_anything() -> None:
    # Given what a bridge says, of which one thing is something else; Expect it shown, or our error, and bounded
    ways = [WAY | {name: junk} for name in WAY for junk in JUNK]
    told: list[Any] = [FOREIGN | {name: junk} for name in FOREIGN for junk in JUNK]
    for foreign in (*told, *(FOREIGN | {"directions": [way]} for way in ways), FOREIGN | {"directions": [WAY] * 9_999}):
        facts = BRIDGE | {"sessions": [], "subscriptions": [], "foreign": foreign}
        with suppress(ProtocolError):
            lines = [drawn(table, width=100) for table in tables([checked(facts, "h:1")])]
            assert sum(line.count("\n") for line in lines) < 40
    assert _cells([BRIDGE], "bridge")["state"] == "b is away"


def test_what_there_is_no_room_for_is_said() -> None:
    # Given a table that is too wide
    [table] = [t for t in tables([DELEGATE | RATES]) if t.columns[0].head == "objects at"]
    # Expect the spare columns to be named
    told = "(no room for unmatched, suppressed, sent: see --wide, --columns)"
    assert drawn(table, width=80).splitlines()[-1] == told
    # Expect one too wide for anything to be a line for each value
    lines = drawn(table, width=40).splitlines()
    assert "objects at: alpha, rome" in lines
    assert max(map(len, lines)) <= 40


def test_a_server_that_is_gone_is_shown_as_such(
    federation: Any, flags: list[str], said: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    pad = federation.pad("alpha", "rome")
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    eventually(lambda: "delegate" in [facts["kind"] for facts in servers.ask()])  # the lookup service has heard of it
    assert _cells(servers.ask(), "kind", "delegate")["address"] == pad.address
    # When its port is closed while the lookup service still lists it
    pad.endpoints.first.stop()
    row = _cells(servers.ask(), "kind", "unreach")
    assert (row["kind"], row["name"], row["address"]) == ("unreachable", "alpha, rome", pad.address)
    # And of the command a code that says so, with the reason
    shown = said(*flags, "status")
    assert shown.code == 1
    assert f"{pad.address}: can't reach {pad.address}: Connection refused" in shown.err


def test_services_of_other_kinds_are_not_asked(federation: Any) -> None:
    # Given a delegate, and a service that is none of ours, in the same lookup service
    pad = federation.pad("alpha", "rome")
    pad.community.wait_joined(pad.server_id, 60.0)
    community = JoinManager(federation.config, name="sensors")
    federation.stack.callback(community.close)
    community.join(ServiceItem("s" * 32, ("org.example.Sensor",), ServiceRef("s" * 32, "sensor", ("127.0.0.1:1",))))
    community.wait_joined("s" * 32, 60.0)
    # Expect it not to be called, and so not to be called unreachable
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    assert [facts["kind"] for facts in servers.ask()] == ["lookup", "delegate"]


def test_a_delegate_that_was_killed_and_started_again_is_asked_and_counted_once(
    federation: Any, flags: list[str], said: Callable[..., Any]
) -> None:
    # Given a delegate that is listed under the id of its time before as well, at the same address
    pad = federation.pad("alpha", "rome")
    community = JoinManager(federation.config, name="before")
    federation.stack.callback(community.close)
    before = msgspec.structs.replace(pad.endpoints.ref("delegate", ()), service_id="f" * 32)
    community.join(ServiceItem("f" * 32, (PAD_TYPE,), before))
    community.wait_joined("f" * 32, 60.0)
    said(*flags, "subscribe", "--email", "ops@example.org", "--type", "other")
    # Expect one delegate, with what it has
    servers = Servers(federation.config, ())
    federation.stack.callback(servers.close)
    assert [facts["kind"] for facts in servers.ask()] == ["lookup", "delegate"]
    [row] = json.loads(said(*flags, "subscriptions", "--json").out)
    assert row["delegates"] == 1


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
    lines = [line.split("\t") for line in plain.splitlines() if line.startswith("alpha, rome\t3")]
    assert [(line[1], line[9:]) for line in lines] == [("3", []), ("3", ["0.0", "0.0"])]


def test_a_server_that_does_not_tell_us_has_refused_and_is_not_away(
    federation: Any, flags: list[str], said: Callable[..., Any], eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that tells its status to nobody
    pad = federation.pad("alpha", "rome")

    def refuse(*_arguments: Any) -> None:
        raise AccessDeniedError("alice may not status")

    monkeypatch.setattr(pad.service.guard, "allow", refuse)
    # When somebody looks; Expect the reason, and an exit code that says that not all was told
    eventually(lambda: "alpha" in said(*flags, "services").out)
    shown = said(*flags, "status")
    assert shown.code == 1
    assert "refused" in shown.out
    assert "unreachable" not in shown.out
    assert f"{pad.address}: alice may not status" in shown.err
