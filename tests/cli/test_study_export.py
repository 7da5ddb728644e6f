"""A data set of a running federation: what its delegates have accounted for is what a study of it says."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from jbi_pubsub.cli import export
from jbi_pubsub.cli.app import run
from jbi_pubsub.cli.export import subscriptions_of
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import OversizeError, StudyError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delegate.overview import page_of_terms
from jbi_pubsub.pad.model.subscription import compile_subscription
from jbi_pubsub.protocol.entries import PAD_TYPE
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.terms import Terms
from jbi_pubsub.spark import dataset
from jbi_pubsub.spark.dataset import Contracts
from jbi_pubsub.spark.studies.study import contracts_in, data_in

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")


@pytest.mark.processes
def test_what_a_study_of_an_export_says_is_what_the_delegates_have_accounted_for(
    federation: Any, figures: Any, flags: list[str], start: Callable[..., Any], tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    # Given two delegates, a registration at each, and subscriptions to all, to some, and to nothing of it
    alpha, bravo = federation.pad("alpha", "rome"), federation.pad("bravo", "paris")
    publisher, subscriber = federation.light(name="detector"), federation.subscriber()
    registrations = [
        publisher.register_publisher(publisher.connect_to_delegate(*at), figures.schema, figures.figure_1)
        for at in (("alpha", "rome"), ("bravo", "paris"))
    ]
    everything = subscriber.register_subscriber()
    some = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate="//lat > 33.2", payload_filter="//secret-looking"
    )
    never = subscriber.register_subscriber(predicate="//lat > 90")
    mine = {everything, some, never}
    assert [subscriber.wait_matched(each, 2) for each in mine] == [2, 2, 2]

    def tapped(pad: Any) -> int:
        return len({s["uid"] for s in pad.status()["subscriptions"]} - mine)

    def delivered(pad: Any) -> int:
        return sum(s["delivered"] for s in pad.status()["subscriptions"] if s["uid"] not in mine)

    def export(*more: str) -> Any:
        told = start(*flags, "study", "export", "--out", str(tmp_path / "data"), "--json", *more)
        eventually(lambda: tapped(alpha) == tapped(bravo) == 1, what=told.stderr)
        return told

    def publish(count: int) -> None:
        for registration in registrations:
            for number in range(count):
                publisher.publish(registration, figures.metadata(lat=f"{32.9 + number / 10:.1f}"), b"<p/>")
        publisher.flush()

    # When a tap takes ten objects, and later, resumed, until Ctrl-C, six more
    first = export("--publications", "10")
    publish(5)
    assert first.fact()["publications"] == 10
    assert first.wait(60.0) == 0
    eventually(lambda: tapped(alpha) == tapped(bravo) == 0)
    second = export("--seconds", "600", "--resume")
    publish(3)
    eventually(lambda: delivered(alpha) + delivered(bravo) == 6)
    second.signal(signal.SIGINT)
    assert second.fact()["publications"] == 16
    assert second.wait(60.0) == 130

    # Expect a finished data set with all contracts but the tap's own, whose fan-out is the delegates' account
    contracts = data_in(tmp_path / "data").contracts
    assert {each.subscription for each in contracts.subscriptions} == mine
    assert {each.delegate for each in contracts.registrations} == {"alpha@rome", "bravo@paris"}
    assert {each.publisher for each in contracts.registrations} == {"detector"}
    [named] = [each for each in contracts.subscriptions if each.subscription == some]
    assert (named.predicate, named.filter, named.direct) == ("//lat > 33.2", "//secret-looking", True)
    assert len({each.subscriber for each in contracts.subscriptions}) == 1
    study = start("study", "fanout", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--json")
    told = json.loads(study.communicate(timeout=60.0)[0])["numbers"]
    accounts = [s["matched"] for pad in (alpha, bravo) for s in pad.status()["subscriptions"] if s["uid"] in mine]
    assert told["objects"] == 16
    assert told["deliveries"] == sum(accounts) > 16
    # and each subscription's share is what they have counted for it
    with (tmp_path / "out" / "tables" / "subscriptions.csv").open(newline="") as opened:
        studied = {row["subscription"]: int(row["objects"]) for row in csv.DictReader(opened)}
    counted = Counter[str]()
    for pad in (alpha, bravo):
        counted.update({s["uid"]: s["matched"] for s in pad.status()["subscriptions"] if s["uid"] in mine})
    assert studied == +counted


@pytest.mark.processes
def test_who_may_not_administer_is_not_told_who_wants_what(
    federation: Any, flags: list[str], start: Callable[..., Any], tmp_path: Path
) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text('[[access]]\naction = ["connect", "publish", "peer", "status", "subscribe"]\n')
    config = federation.config
    section = msgspec.structs.replace(config.policy, file=str(rules))
    federation.pad(config=msgspec.structs.replace(config, policy=section))

    told = start(*flags, "study", "export", "--seconds", "0", "--out", str(tmp_path / "data"))

    assert told.communicate(timeout=60.0)[1].count("administer") >= 1
    assert told.wait(60.0) == 1


@pytest.mark.processes
def test_an_export_that_was_killed_is_gone_on_with_and_its_tap_is_nobodys_wish(
    federation: Any, figures: Any, flags: list[str], start: Callable[..., Any], tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    # Given an export that is killed while a second one is refused its folder
    pad, out, publisher = federation.pad("alpha", "rome"), tmp_path / "data", federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    publisher.register_publisher(at, figures.schema, figures.figure_1)
    words = [*flags, "study", "export", "--out", str(out)]
    killed = start(*words, "--seconds", "600")
    eventually(lambda: len(pad.status()["subscriptions"]) == 1 and (out / "subscriptions").is_dir())
    assert "another process writes to" in start(*words, "--seconds", "0").communicate(timeout=60.0)[1]
    killed.signal(signal.SIGKILL)
    killed.wait(60.0)
    with pytest.raises(StudyError, match="unfinished"):
        data_in(out)

    # When it is gone on with, before the lease of its tap has run out
    again = start(*words, "--seconds", "0", "--resume", "--json").fact()

    # Expect a finished data set in which nobody wants anything
    assert again["subscriptions"] == again["publications"] == 0
    assert data_in(out).contracts.subscriptions == ()
    assert len(pad.status()["subscriptions"]) >= 1


def test_without_a_federation_what_was_exported_before_stays(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.write(tmp_path / "d", Contracts(), [], source="exported")
    words = ["--no-multicast", "--locator", "127.0.0.1:1", "--set", "lookup.timeout=0.2"]
    assert run([*words, "study", "export", "--seconds", "0", "--out", str(tmp_path / "d")]) == 1
    assert capsys.readouterr().err
    assert data_in(tmp_path / "d")


@pytest.mark.processes
def test_a_contract_that_comes_and_goes_during_the_tap_is_exported(
    federation: Any, figures: Any, flags: list[str], start: Callable[..., Any], tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    # Given an export of a federation in which nobody publishes yet
    pad, out, subscriber, publisher = federation.pad(), tmp_path / "data", federation.subscriber(), federation.light()
    told = start(*flags, "study", "export", "--publications", "2", "--out", str(out), "--json")
    eventually(lambda: (out / "registrations").is_dir(), 30.0)

    # When a publisher and a subscriber come, an object is published, and they go as soon as they are known
    registration = publisher.register_publisher(
        publisher.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    subscription = subscriber.register_subscriber()
    eventually(lambda: len(pad.status()["subscriptions"]) == 2, 30.0)
    publisher.publish(registration, figures.metadata(), b"<p/>")
    eventually(lambda: len(contracts_in(out, []).registrations) == 1, 30.0)
    publisher.publish(registration, figures.metadata(), b"<p/>")
    publisher.flush()
    publisher.close()
    subscriber.close()

    # Expect both among the contracts
    assert told.fact()["publications"] == 2
    contracts = data_in(out).contracts
    assert [each.subscription for each in contracts.subscriptions] == [subscription]
    assert len(contracts.registrations) == 1


class _Community:
    """Knows of one delegate."""

    def lookup(self, *_: object) -> list[ServiceItem]:
        ref = ServiceRef("d" * 32, "status", ("127.0.0.1:1",))
        return [ServiceItem("d" * 32, (PAD_TYPE,), ref, ())]


def test_what_a_delegate_tells_is_checked_and_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        terms(1, "good", "x"), terms(2, "\x1b[2J", "x"), replace(terms(3, "many", "x"), recipients=1 << 63),
        replace(terms(4, "odd", "x"), entries=(EntryRep(EntryClass("a", ("f",), (("a", "v"),)), ("1", "2")),)),
        terms(5, "huge", "y", "n" * 10_000),
    ]  # fmt: skip
    monkeypatch.setattr(export, "fetch_terms", lambda *_, **__: iter(told))
    federation = export._Federation(Config(), cast("Any", _Community()))

    assert [each.subscription for each in federation.contracts().subscriptions] == ["good"]
    assert [each.row for each in federation.rejects.values()] == ["\x1b[2J", "many", "odd", "huge"]

    # and one that goes on and on is left
    endless = (replace(terms(n, f"s{n}", "x"), predicate="p" * 10_000) for n in count(1))
    monkeypatch.setattr(export, "fetch_terms", lambda *_, **__: endless)
    monkeypatch.setattr(export, "TOLD_BYTES", 1_000_000)
    assert 90 < len(federation.contracts().subscriptions) < 100
    assert [text for text in federation.unanswered if "127.0.0.1:1 (told more than we take" in text]


STARTER = """
import os, subprocess, sys
tap = subprocess.Popen([sys.executable, "-m", "jbi_pubsub", *sys.argv[1:], "--parent", str(os.getpid())])
tap.wait()
"""


@pytest.mark.processes
def test_a_tap_that_another_has_started_for_itself_ends_when_that_is_killed(
    federation: Any, figures: Any, flags: list[str], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    alpha, publisher = federation.pad("alpha", "rome"), federation.light()
    registration = publisher.register_publisher(
        publisher.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    data = tmp_path / "data"
    words = [*flags, "study", "export", "--seconds", "600", "--out", str(data)]
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *words])
    try:
        eventually(lambda: len(alpha.status()["subscriptions"]) == 1, 60.0)
        publisher.publish(registration, figures.metadata(), b"<p/>")
        eventually(lambda: alpha.status()["subscriptions"][0]["delivered"] == 1, 30.0)
    finally:
        starter.kill()
        starter.wait(60.0)

    told = data / "manifest.json"  # not before the tap knows the contracts
    eventually(lambda: told.is_file() and json.loads(told.read_text())["state"] == "complete", 30.0)
    assert json.loads((data / "manifest.json").read_text())["rows"]["publications"] == 1
    eventually(lambda: len(alpha.status()["subscriptions"]) == 0, 30.0)


def terms(number: int, uid: str, session: str, name: str = "app") -> Terms:
    return Terms(number, uid, name, session, (), "", "", (), "xpath", False, 0, True)


def test_processes_of_one_name_are_told_apart_and_one_at_many_servers_is_one() -> None:
    told = {
        "s1": [terms(1, "a", "x1"), terms(2, "c", "y1")],
        "s2": [terms(1, "b", "x2")],
        "s3": [terms(1, "a", "x3"), terms(2, "b", "x3"), terms(3, "m", "", "")],
    }

    found = {each.subscription: each.subscriber for each in subscriptions_of(told)}

    assert found["a"] == found["b"] == "app"
    assert found["c"] == "app #2"
    assert found["m"] == ""


def test_an_export_has_each_term_that_decides_a_delivery() -> None:
    asked = SubscriptionRequest("s", predicate="/t", view="combined", unfiltered="deliver", unlike="me", local=True)

    [row] = subscriptions_of(
        {"s1": page_of_terms([compile_subscription(asked, owner="x", number=1)], {}, after=-1, count=1)}
    )

    assert (row.view, row.language, row.unfiltered, row.unlike, row.local) == (
        "combined",
        "xpath",
        "deliver",
        "me",
        True,
    )


def test_terms_come_page_by_page_and_have_nothing_that_opens_anything() -> None:
    # Given three subscriptions, by e-mail, with a secret
    secret = "5" * 32
    standing = [
        compile_subscription(
            SubscriptionRequest(f"s{n}", recipients=("ops@example.org",), direct=False, secret=secret),
            owner="session-abc",
            number=n,
        )
        for n in (3, 1, 2)
    ]

    # When they are told two at a time
    pages = [page_of_terms(standing, {"session-abc": "app"}, after=after, count=2) for after in (0, 2, 3)]

    # Expect each once, in order, without secret, address or session id
    assert [[each.uid for each in page] for page in pages] == [["s1", "s2"], ["s3"], []]
    told = msgspec.msgpack.encode(pages)
    assert [text for text in (secret, "ops@example.org", "session-abc") if text.encode() in told] == []
    with pytest.raises(OversizeError):
        page_of_terms(standing, {}, after=0, count=10_000)
