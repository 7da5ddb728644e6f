"""Pages of `jbi top` and the series of `jbi status`, with quality of service."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from contracts import stand_under
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.cli.pages import PAGES, PageFacts
from jbi_pubsub.cli.series import _number, show_series
from jbi_pubsub.cli.show import View, places
from jbi_pubsub.cli.top import Look, lines_of, page_of
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.status.delegate import DelegateOverview
from jbi_pubsub.protocol.status.quality import POINTS_MOST, QualityStatus
from jbi_pubsub.web.federation import Server, Snapshot, checked

TYPE = "mil.af.rl.jbi.Intel_Imagery"
REF = ServiceRef("", "status", ("127.0.0.1:1",))
HOSTILE = "x\x1b[2J\u202e\u200b東京\nb" * 5

TOLD: dict[str, Any] = {
    "component": "alpha@rome",
    "policy": {
        "policies": 7, "version": 12, "digest": "0123456789abcdef", "contracts": {"3": 10, "5": 2}, "fault": "",
        "source": "policy.toml",
    },
    "tasks": {
        "strategy": "strict",
        "bins": [
            {"importance": 1, "bin": 0, "depth": 40, "served": 2, "cpu": 0.5},
            {"importance": 5, "bin": 2, "depth": 3, "served": 100, "cpu": 1.5},
        ],
    },
    "links": [
        {
            "name": "satcom", "limit": 100_000.0, "estimate": None, "used": 99_000, "busy": 0.99, "backlog": 60_000,
            "waiting_by_level": [4, 3, 2, 1, 0], "rtt_ms": 620.0, "retransmits": 7, "pending": 12_000,
        }
    ],
    "shaping": {"on": True, "shaped": 8, "unshaped": 1, "saved": 400_000, "seconds": 0.02},
    "types": [
        {
            "name": "uav.imagery", "sources": ["raven", "predator"], "received": 100, "dropped": 900, "bytes": 10**6,
            "last": 1_000_000_000.0, "rate": 2.5, "rates": [0.0, 5.0, 10.0], "p50": 0.2, "p95": 4.0,
        },
        {"name": "quiet", "sources": []},
    ],
}  # fmt: skip


def server(told: dict[str, Any] | None) -> Server:
    facts = {"kind": "delegate", "address": "127.0.0.1:40123", "uptime": 1.0, "name": "alpha", "location": "rome"}
    known = checked({**facts, **({} if told is None else {"qos": told})}, REF)
    return Server("alpha", "delegate", REF, known, {}, "", {}, listed=True)


def seen(*servers: Server) -> PageFacts:
    return PageFacts(Snapshot(number=3, at=10.0, servers=servers, problem=""), lambda *_: [])


def rows(page: str, number: int, told: dict[str, Any] | None) -> list[dict[str, str]]:
    table = page_of(seen(server(told)), Look(page))[number]
    return [dict(zip((c.head for c in table.columns), map(str, row), strict=True)) for row in table.rows]


def test_links_and_bins_are_shown_with_what_is_in_force() -> None:
    [link] = rows("links", 0, TOLD)
    assert (link["link"], link["limit"], link["measured"], link["used"]) == ("satcom", "800 kbps", "-", "792 kbps")
    assert (link["busy"], link["waiting"], link["ready 1-5"], link["rtt"]) == ("99%", "60 KB", "4 3 2 1 0", "620 ms")
    important, least = rows("links", 1, TOLD)
    assert (important["importance"], important["bin"], important["waiting"], important["share"]) == (
        "5", "2", "3", "75.0%"
    )  # fmt: skip
    assert least["share"] == "25.0%"
    [force] = rows("links", 2, TOLD)
    assert (force["policies"], force["version"], force["digest"], force["strategy"]) == (
        "7",
        "12",
        "01234567",
        "strict",
    )
    assert force["contracts 1-5"] == "0 0 10 0 2"
    assert (force["shaped"], force["from"], force["what is wrong"]) == ("8, 400 KB saved", "policy.toml", "")


def test_types_are_shown_as_their_subscribers_get_them() -> None:
    imagery, quiet = rows("types", 0, TOLD)
    assert (imagery["type"], imagery["source"]) == ("uav.imagery", "raven, predator")
    assert (imagery["received"], imagery["dropped"], imagery["per s"]) == ("100", "900", "2.5")
    assert (imagery["10 s"], imagery["delay"], imagery["p95"]) == ("▁▅█", "200 ms", "4.0 s")
    assert imagery["last"].count(":") == 2
    assert (quiet["last"], quiet["per s"], quiet["10 s"], quiet["delay"]) == ("-", "-", "", "-")


@pytest.mark.parametrize("page", ["links", "types"])
def test_without_quality_of_service_the_pages_say_so(page: str) -> None:
    [row] = rows(page, 0, None)
    assert "mode is off" in next(iter(row.values()))
    # Expect a server whose managers tell nothing yet to be shown as such
    assert "mode is off" not in str(page_of(seen(server({})), Look(page)))


@pytest.mark.parametrize(
    "told",
    [
        {"links": [{"name": "x", "used": -1}]},
        {"links": [{"name": "x", "waiting_by_level": [math.nan]}]},
        {"types": [{"name": "x", "rates": [math.inf]}]},
        {"types": [{"name": "x", "last": 1e15}]},
        {"tasks": {"bins": [{"importance": "high"}]}},
        {"policy": {"contracts": {"5": 10**30}}},
        {"types": "none"},
        "on",
    ],
)
def test_what_no_server_of_ours_says_is_not_shown(told: Any) -> None:
    with pytest.raises(ProtocolError):
        server(told)


@settings(max_examples=40)
@given(
    width=st.integers(40, 200), height=st.integers(3, 60), page=st.sampled_from(["links", "types"]),
    text=st.text(max_size=40), number=st.floats(0, 1e11), count=st.integers(0, 10**15), many=st.integers(0, 30),
)  # fmt: skip
def test_hostile_names_and_numbers_stay_harmless(
    width: int, height: int, page: str, text: str, number: float, count: int, many: int
) -> None:
    link = {
        "name": HOSTILE + text,
        "limit": number,
        "used": number,
        "backlog": count,
        "waiting_by_level": [count] * many,
    }
    of_type = {
        "name": text + HOSTILE, "sources": [HOSTILE, text], "received": count, "last": number, "rates": [number] * many,
        "p50": number,
    }  # fmt: skip
    told = {
        "links": [link] * (many % 5),
        "types": [of_type] * many,
        "policy": {
            "digest": HOSTILE,
            "fault": text,
            "following": HOSTILE,
            "version": count,
            "contracts": {text: count},
        },
        "tasks": {"strategy": HOSTILE, "bins": [{"importance": count, "bin": count, "cpu": number}], "fault": HOSTILE},
    }
    lines = lines_of(seen(server(told)), Look(page), width, height, "12:00:00")
    assert len(lines) == height
    assert all(line.isprintable() for line in lines)
    assert max(map(places, lines[1:-1])) <= width


def test_the_pages_are_numbered_and_explained() -> None:
    assert list(PAGES)[-4:] == ["links", "types", "networks", "federations"]
    assert msgspec.convert({}, QualityStatus) == QualityStatus()
    assert DelegateOverview(kind="delegate", address="", uptime=0.0).qos is msgspec.UNSET


# -- a delegate ---------------------------------------------------------------------------------------------------


@pytest.fixture
def managed(fixtures: Any) -> Iterator[Any]:
    with ExitStack() as stack:
        config = msgspec.structs.replace(fixtures.test_config(), qos=QosSection(mode="on"))
        federation = fixtures.Federation(config, stack)
        yield federation


def said(*words: str) -> Any:
    return CliRunner().invoke(jbi, list(words))


@pytest.mark.row("Q-75")
@pytest.mark.processes
def test_commands_show_a_delegate_that_manages_quality(managed: Any, figures: Any, eventually: Any) -> None:
    # Given a delegate with a subscription under a contract
    server, publisher, subscriber = managed.pad(), managed.light(name="raven"), managed.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    stand_under(server.delegate, uid, importance=5, deadline=3.0)
    publisher.publish(registration, figures.figure_1, b"x")
    assert subscriber.receive(uid).payload == b"x"

    # Expect its page of types, with where they come from
    shown = said("top", "types", "--once", "--every", "0.1", "--server", server.address)
    assert shown.exit_code == 0, shown.output
    assert TYPE.rpartition(".")[2] in shown.output
    # Expect links and bins, and contracts beside subscriptions
    assert "in force at" in said("top", "links", "--once", "--every", "0.1", "--server", server.address).output
    told = json.loads(said("top", "subscriptions", "--json", "--every", "0.1", "--server", server.address).output)
    [row] = told["subscriptions"]
    assert (row["qos"]["importance"], row["qos"]["deadline"]) == (5, 3.0)

    # Expect every series by name: as a table, as CSV, as JSON
    eventually(lambda: len(server.status()["qos"]["series"].get("shaping.shaped", {}).get("points", [])) >= 2)
    table = said("status", server.address, "--series", "shaping.*")
    assert "shaping.shaped" in table.output, table.output
    found = list(
        csv.DictReader(io.StringIO(said("status", server.address, "--series", "shaping.shaped", "--csv").output))
    )
    assert {each["series"] for each in found} == {"shaping.shaped"}
    assert {float(each["value"]) for each in found} == {0.0}
    assert [float(each["time"]) for each in found] == sorted(float(each["time"]) for each in found)
    [facts] = json.loads(said("status", server.address, "--series", "shaping.shaped", "--json").output)
    assert facts["series"]["shaping.shaped"]["mean"] == 0.0
    names = {f"types.{TYPE}.received", "tasks.kinds.judge.served", "policy.version"}
    eventually(lambda: names <= server.status()["qos"]["series"].keys())
    everything = said("status", server.address, "--series", "*", "--csv").output
    assert {each["series"] for each in csv.DictReader(io.StringIO(everything))} >= names

    # Expect the nearest right name for a wrong one, and a word where there is none at all
    wrong = said("status", server.address, "--series", "shaping.shapd").exception
    assert isinstance(wrong, ConfigurationError)
    assert "did you mean shaping.shaped?" in str(wrong)
    for words in (["--csv"], ["--series", "x", "--watch"], ["--series", "x", "--csv", "--json"]):
        assert isinstance(said("status", server.address, *words).exception, ConfigurationError)


@pytest.mark.processes
def test_a_fault_of_the_policies_is_told_by_the_status(managed: Any, tmp_path: Any, eventually: Any) -> None:
    # Given a delegate whose policy file is broken while it runs
    path = tmp_path / "policy.toml"
    path.write_text('[[policy]]\nname = "all"\nimportance = 2\n')
    config = msgspec.structs.replace(managed.config, policy=PolicySection(file=str(path)))
    server = managed.pad(config=config)
    assert "qos.policy" not in said("status", server.address).output
    path.write_text('[[policy]]\nname = "all"\nimportance = 9\n')
    # Expect the status and the page of what is in force to say what is wrong, with its place
    eventually(lambda: server.status()["qos"]["policy"]["fault"])
    assert "policy.toml:3" in said("status", server.address).output
    assert "policy.toml:3" in said("top", "links", "--once", "--every", "0.1", "--server", server.address).output


def test_numbers_of_series_are_told_without_exponents() -> None:
    assert [_number(value) for value in (0.0, 0.248, 2425.0, 37_500.0)] == ["0", "0.248", "2,425", "37,500"]


def test_a_server_without_quality_has_no_series(federation: Any) -> None:
    federation.lookup()
    server = federation.pad()
    found = said("status", server.address, "--series", "x").exception
    assert isinstance(found, ConfigurationError)
    assert "[qos] mode" in found.hint


@pytest.mark.parametrize(
    "series",
    [
        {"x": {"at": 1.0, "last": math.nan}},
        {"x": {"at": 1e300, "last": 1.0}},
        {"x": {"at": 1.0, "last": 1.0, "points": [[1.0, 1.0]] * (POINTS_MOST + 1)}},
        {"x": {"at": 1.0, "last": "1"}},
        ["x"],
    ],
)
def test_series_that_no_server_of_ours_tells_are_refused(series: Any) -> None:
    with pytest.raises(ProtocolError, match="series that this version does not understand"):
        show_series([{"address": "a", "qos": {"series": series}}], "*", View(), as_csv=False, as_json=False)


def test_hostile_names_of_series_do_nothing_in_a_table_calculation(capsys: pytest.CaptureFixture[str]) -> None:
    point = {"at": 1.0, "last": 1.0, "points": [[1.0, 2.0]]}
    facts = {"address": "a", "qos": {"series": {"=cmd()": point, 'x"\x1b[2J\n': point}}}
    show_series([facts], "*", View(), as_csv=True, as_json=False)
    out = capsys.readouterr().out
    assert [each["series"] for each in csv.DictReader(io.StringIO(out))] == ["'=cmd()", 'x" [2J ']
    show_series([facts], "*", View(), as_csv=False, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.replace("\t", " ").isprintable() for line in lines)
