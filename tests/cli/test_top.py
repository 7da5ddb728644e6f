"""`jbi top`: pages of what goes on, keys, sizes, and a terminal that is left as it was."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.cli.pages import PAGES, Page, PageFacts, spark
from jbi_pubsub.cli.show import Column, Table, places
from jbi_pubsub.cli.top import Look, lines_of, page_of, pressed
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.status.delegate import DelegateOverview, EndingLease, MailStatus
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus
from jbi_pubsub.web.federation import Edge, Server, Snapshot

HOSTILE = "x\x1b[2J\u202e\u200b東京\nb" * 5
REF = ServiceRef("", "status", ("127.0.0.1:1",))


def server(name: str, *, error: str = "", **facts: Any) -> Server:
    known = DelegateOverview(
        kind="delegate", address="127.0.0.1:40123", uptime=93_784.0, name=name, location="rome", **facts
    )
    rates = {"published": 12.5, "delivered": 1_234.0, "lost": 0.5, "lost.late": 0.5, "mailed": 0.0}
    return Server(name, "delegate", REF, known, {}, error, rates, listed=True)


def seen(*servers: Server, **shot: Any) -> PageFacts:
    return PageFacts(
        Snapshot(number=3, at=10.0, servers=servers, **{"problem": "", **shot}), lambda *_: [0.0, 5.0, 10.0]
    )


def test_rates_are_bars() -> None:
    assert spark([]) == ""
    assert spark([0.0, 0.0]) == "▁▁"
    assert spark([0.0, 1.0, 2.0, 4.0, 8.0]) == "▁▂▃▅█"


def test_the_overview_tells_rates_losses_and_who_is_away() -> None:
    # Given two servers, one of which does not answer
    lossy = server("alpha", lost={"late": 7, "oversize": 0}, queued=3, in_flight=2)
    found = page_of(seen(lossy, server("bravo", error="no answer within 3 s")), Look("overview"))
    servers, losses, away = found
    [row] = [dict(zip((c.head for c in servers.columns), map(str, row), strict=True)) for row in servers.rows]
    assert row["server"] == "alpha, rome"
    assert (row["in/s"], row["out/s"], row["10 s in"], row["waiting"], row["up"]) == (
        "12.5",
        "1,234",
        "▁▅█",
        "3",
        "1d02h",
    )
    assert [tuple(map(str, row)) for row in losses.rows] == [("late", "7", "0.5")]
    assert away.rows == [("bravo, rome", "no answer within 3 s")]


def test_the_other_pages() -> None:
    one = server(
        "alpha",
        ending=[
            EndingLease(kind="subscriber", name="kabul", left=12.34),
            EndingLease(kind="publisher", name="camera", left=3.0),
        ],
        mail=MailStatus(queued=4, bytes=2_048, away="Connection refused", server="mx:25"),
    )
    edges = (Edge("publish", "alpha", "camera", 1, 2, 3.5), Edge("mail", "alpha", "", 1, 1, None, 4))
    look = seen(one, edges=edges)
    [leases] = page_of(look, Look("leases"))
    assert [tuple(map(str, row)) for row in leases.rows] == [
        ("3.0 s", "publisher", "camera", "alpha, rome"), ("12.3 s", "subscriber", "kabul", "alpha, rome")
    ]  # fmt: skip
    [mail] = page_of(look, Look("mail"))
    assert [str(cell) for cell in mail.rows[0]][3:] == ["4", "2.05 KB", "0", "mx:25", "Connection refused"]
    [parties] = page_of(look, Look("parties"))
    assert [str(cell) for cell in parties.rows[0]][:4] == ["camera", "sends", "alpha, rome", "3.5"]
    assert [str(cell) for cell in parties.rows[1]][:4] == ["-", "mails", "alpha, rome", "-"]


def test_networks_tell_what_goes_over_them_and_who_is_heard() -> None:
    # Given a node on a network, with trouble, and another server without one
    told = NetworksStatus(
        links=[NetworkStatus(name="lab", neighbours=3, sent=1_200, repairs=12.5, rate=2e6, trouble="eth7")],
        peers=[PeerStatus(id="b" * 32, name="bravo", network="lab", heard=1.26, loss=30.0, registrations=2)],
        nodes=4, twin=True,
    )  # fmt: skip
    links, peers = page_of(seen(server("alpha", networks=told, node="a" * 32), server("other")), Look("networks"))
    [row] = [dict(zip((c.head for c in links.columns), map(str, row), strict=True)) for row in links.rows]
    assert (row["network"], row["at"], row["nodes"], row["sent"]) == ("lab", "node rome", "3", "1,200")
    assert (row["again"], row["rate"], row["sent/s"]) == ("12.5 %", "2 MB/s", "-")
    assert row["trouble"] == "eth7; another node uses its id"
    assert [str(cell) for cell in peers.rows[0]][:6] == ["bravo", "bbbbbbbb", "lab", "1.3 s", "30.0 %", "2"]
    assert peers.title == "3 more are not told"
    # When nobody has any; Expect how to have one
    [alone] = page_of(seen(server("alpha")), Look("networks"))
    assert "[network.NAME]" in str(alone.rows[0])


@settings(max_examples=40)
@given(
    width=st.integers(40, 200), height=st.integers(3, 60), page=st.sampled_from(list(PAGES)), helped=st.booleans(),
    first=st.integers(0, 100), count=st.integers(0, 12), text=st.text(max_size=40),
)  # fmt: skip
def test_a_page_fits_the_screen(
    width: int, height: int, page: str, helped: bool, first: int, count: int, text: str
) -> None:
    facts = {
        "lost": {text: 3},
        "ending": [EndingLease(kind=text, name=HOSTILE, left=1.0)],
        "mail": MailStatus(fault=text),
        "networks": NetworksStatus(
            links=[NetworkStatus(name=text, place=HOSTILE)], peers=[PeerStatus(name=text, roles=[HOSTILE])]
        ),
    }
    many = [server(f"{number}{text}", error=HOSTILE if number % 5 == 4 else "", **facts) for number in range(count)]
    edges = tuple(Edge("deliver", s.id, text, 1, 1, 1.0) for s in many)
    lines = lines_of(seen(*many, edges=edges), Look(page, first=first, helped=helped), width, height, "12:00:00")
    assert len(lines) == height
    assert all(line.isprintable() for line in lines)
    assert max(map(places, lines[1:-1])) <= width
    # Expect the bars to say where one is, and how to leave
    assert lines[0].startswith(f" jbi top: {page}")
    assert lines[-1].startswith(" q quit")


def test_keys() -> None:
    look = Look("overview")
    assert pressed(look, "q", 5, 20) is None
    assert pressed(look, "escape", 5, 20) is None
    assert pressed(look, "2", 5, 20) == Look("subscriptions")
    assert pressed(look, "0", 5, 20) == look
    assert pressed(look, "²", 5, 20) == look
    assert pressed(look, "right", 5, 20) == Look("subscriptions")
    assert pressed(look, "left", 5, 20) == Look(list(PAGES)[-1])
    helped = pressed(look, "?", 5, 20)
    assert helped == Look("overview", helped=True)
    assert pressed(helped, "escape", 5, 20) == look
    assert pressed(Look("overview", sort=3), "s", 5, 20) == Look("overview", sort=4)
    assert pressed(Look("overview", sort=4), "s", 5, 20) == look
    assert pressed(look, "page down", 5, 20) == Look("overview", first=20)
    assert pressed(look, "up", 5, 20) == look
    assert pressed(look, " ", 5, 20) == Look("overview", paused=True)


def test_order_is_that_of_numbers_the_largest_first() -> None:
    look = seen(server("alpha", queued=9), server("bravo", queued=1_000), server("charlie", queued=5))

    def names(**wanted: Any) -> list[str]:
        return [str(row[0])[:1] for row in page_of(look, Look("overview", **wanted))[0].rows]

    waiting = [c.head for c in page_of(look, Look("overview"))[0].columns].index("waiting")
    assert names() == ["a", "b", "c"]
    assert names(sort=waiting) == ["b", "a", "c"]
    assert names(sort=waiting, upside_down=True) == ["c", "a", "b"]
    assert names(sort=0) == ["a", "b", "c"]


def test_a_room_adds_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES, "links", Page("links and bins", lambda _: [Table([Column("link")], [("satcom",)])]))
    lines = lines_of(seen(server("alpha")), Look("links"), 80, 10, "12:00:00")
    assert "satcom" in lines
    assert "6 links" in lines[-1]


def test_one_look_for_programs(federation: Any, figures: Any, flags: list[str], said: Callable[..., Any]) -> None:
    # Given a delegate whose publisher has published what a subscriber gets
    pad = federation.pad()
    adapter = federation.light()
    registration = figures.register(adapter)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(uid) == 1
    adapter.publish(registration, figures.figure_1)
    assert subscriber.receive(uid, 60.0) is not None
    # When somebody pipes a page; Expect lines, with rates
    shown = said(*flags, "top", "--every", "0.1")
    head, row, *_ = (line.split("\t") for line in shown.out.splitlines())
    assert (shown.code, head[:2], row[:2]) == (0, ["server", "in/s"], ["alpha, rome", "0.0"])
    shown = said(*flags, "top", "subscriptions", "--every", "0.1", "--sort", "delivered")
    assert [line.split("\t")[0] for line in shown.out.splitlines()] == ["subscription", uid]
    # When one server is named; Expect that one, with what it has
    shown = said(*flags, "top", "--every", "0.1", "--server", pad.address)
    assert [line.split("\t")[0] for line in shown.out.splitlines()] == ["server", "alpha, rome"]
    # When a program asks; Expect all of it
    facts = json.loads(said(*flags, "top", "subscriptions", "--every", "0.1", "--json").out)
    assert [(s["kind"], s["error"]) for s in facts["servers"]] == [("lookup", ""), ("delegate", "")]
    assert facts["servers"][1]["status"]["published"] == 1
    assert [(s["uid"], s["delivered"]) for s in facts["subscriptions"]] == [(uid, 1)]
    assert facts["subscriptions_in_all"] == 1
    assert set(facts["servers"][1]["last_10_s"]) >= {"published", "delivered", "lost"}


def test_a_pipe_gets_all_subscriptions_or_is_told_how_many_it_gets(
    federation: Any, figures: Any, flags: list[str], said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given more subscriptions at one delegate than a terminal shows
    federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uids = {subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery") for _ in range(3)}
    publisher.wait_for_subscribers(registration, 3)
    monkeypatch.setattr("jbi_pubsub.cli.status.ROWS_MOST", 2)
    monkeypatch.setattr("jbi_pubsub.cli.pages.ROWS_MOST", 2)
    # Expect all of `jbi status` in a pipe and with --wide, and a terminal to be told how many there are
    listed = said(*flags, "status", "--subscriptions").out
    assert set(re.findall(r"^subscription-[0-9a-f]{32}", listed, re.MULTILINE)) == uids
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        assert "(the first 2 of 3)" in said(*flags, "status", "--subscriptions").out
        assert uids <= set(
            re.findall("subscription-[0-9a-f]{32}", said(*flags, "status", "--subscriptions", "--wide").out)
        )
    # And of `jbi top` the first of each server, and on stderr where the others are
    shown = said(*flags, "top", "subscriptions", "--every", "0.1")
    assert len(shown.out.splitlines()) == 1 + 2
    assert "2 of 3 subscriptions" in shown.err
    assert "`jbi status --subscriptions`" in shown.err


@pytest.mark.processes
def test_full_queues_are_alarms_for_programs(
    federation: Any, figures: Any, flags: list[str], said: Callable[..., Any], start: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    # Given a subscriber whose process stands still, and more objects than its queue holds
    pad, adapter = federation.pad(), federation.light()
    registration = figures.register(adapter)
    kind = ("--type", "mil.af.rl.jbi.Intel_Imagery")
    process = start(*flags, "--set", "queue.bound=4", "subscribe", *kind)
    adapter.wait_for_subscribers(registration, 1, 60.0)
    process.signal(signal.SIGSTOP)
    try:
        for _ in range(60):
            adapter.publish(registration, figures.figure_1)
        eventually(lambda: pad.overview()["queued"] == 4)
        # When a program asks; Expect the alarm of the console's first page, with its place and what to do
        facts = json.loads(said(*flags, "top", "--every", "0.1", "--json").out)
        [full] = [each for each in facts["alarms"] if each["what"].startswith("A queue is full")]
        assert full["what"] == "A queue is full: 4 of 4 objects"
        assert full["where"].endswith(" at alpha, rome")
        assert full["do"]
    finally:
        process.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("top", "overvew"), 2, "no page overvew; did you mean overview?"),
        (("top", "--once", "--every", "0.1"), 1, "tried: 127.0.0.1:1 (can't reach 127.0.0.1:1: Connection refused)"),
        (("top", "--every", "0"), 2, "--every"),
        (("top", "mail", "--once", "--server", "127.0.0.1:1", "--every", "0.1"), 1, "Connection refused"),
    ],
    ids=str,
)
def test_what_can_not_be_shown(arguments: tuple[str, ...], code: int, told: str, said: Callable[..., Any]) -> None:
    answer = said("--no-multicast", "--locator", "127.0.0.1:1", "--set", "lookup.timeout=0.3", *arguments)
    assert answer.code == code
    assert told in answer.err
    assert "Traceback" not in answer.err


# -- in a terminal ------------------------------------------------------------------------------------------------


@pytest.fixture
def address(federation: Any) -> str:
    return str(federation.pad("alpha", "rome").address)


@pytest.mark.processes
def test_keys_turn_pages_a_new_size_is_taken_and_q_leaves_the_terminal_as_it_was(
    terminal: Callable[..., Any], address: str
) -> None:
    with terminal("--no-multicast", "top", "--server", address, columns=80, lines=24) as screen:
        screen.until("alpha, rome")
        # When keys are pressed; Expect pages, order and help, and nothing of the keys on the screen
        screen.press("3")
        screen.until("jbi top: mail")
        screen.press("\x1b[C")
        screen.until("jbi top: leases")
        screen.press("\x1b[D")
        screen.until("jbi top: mail")
        screen.press("s?")  # together
        assert "by mail at" in screen.until("turn the order")
        screen.press("1")
        # When the terminal gets smaller; Expect what fits
        screen.until("jbi top: overview")
        screen.size(44, 10)
        said = screen.until("jbi top: overview")
        said += screen.until("alpha, rome")
        frame = said.rpartition("\x1b[?2026h")[2]
        assert frame.count("\r\n") <= 10
        # When there has been enough
        screen.press("q")
        assert screen.ends() == 0
        assert screen.is_restored()


@pytest.mark.processes
def test_ctrl_z_gives_the_terminal_back_and_going_on_takes_it(terminal: Callable[..., Any], address: str) -> None:
    with terminal("--no-multicast", "top", "--server", address) as screen:
        screen.until("alpha, rome")
        assert not screen.is_restored()
        screen.press(" ")
        screen.until("held still")
        screen.press("\x1a")
        screen.wait_stopped()
        assert screen.is_restored()
        # When it goes on; Expect its screen again, drawn anew, and keys
        screen.signal(signal.SIGCONT)
        screen.until("alpha, rome")
        assert not screen.is_restored()
        # When it is terminated; Expect the same as with a key
        screen.signal(signal.SIGTERM)
        assert screen.ends() == 143
        assert screen.is_restored()
        assert "Traceback" not in screen.output


@pytest.mark.processes
def test_an_error_of_the_command_leaves_the_terminal_as_it_was(terminal: Callable[..., Any], address: str) -> None:
    # Given an order that there is not, which is found when the page is there
    with terminal("--no-multicast", "top", "--server", address, "--sort", "wating") as screen:
        assert screen.ends() == 2
        assert screen.is_restored()
        assert "did you mean waiting?" in screen.output
