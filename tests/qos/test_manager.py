"""The policy manager of an information space and those who follow it, over real connections and as processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config, Wish
from jbi_pubsub.cli import steering
from jbi_pubsub.cli.app import run
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, OversizeError, PolicyError, ProtocolError, StorageError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.policy import channels
from jbi_pubsub.policy import server as policy_server
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.policy.proxy import ALIVE, MANAGER_TYPE, NEWS, POLICY_MANAGER, Joining, PolicyManager, PolicyProxy
from jbi_pubsub.policy.rivals import RivalManagers
from jbi_pubsub.policy.server import PolicyServer
from jbi_pubsub.policy.space import LinkUse, LqmReport, PolicyNews, PolicyStanding
from jbi_pubsub.protocol.status.quality import LinkStatus
from jbi_pubsub.qos.following import STATE_MARK, Following, Uses

TYPE = "mil.af.rl.jbi.Intel_Imagery"
FILE = f"""
[space]
strategy = "weighted_fair"

[role]
"nobody yet" = "patrol"

[[policy]]
name = "imagery"
type = "{TYPE}"
precedence = 1
importance = 2

[[policy]]
name = "imagery in general"
type = "mil.*"
importance = 4
deadline = "1 min"

[[template]]
name = "first"
parameters = ["type"]

[[template.policy]]
name = "{{type}} first"
type = "{{type}}"
precedence = 5
replace = "type"

[[mission]]
name = "Route Irish"
use = [{{ template = "first", type = "{TYPE}" }}]
active = false

[[link]]
name = "satcom"
members = "delivery == 'queue' and action == 'subscribe'"
rate = "8 Mbps"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def managed(federation: Any) -> Config:
    """The configuration of delegates that have quality of service and no policies of their own."""
    config: Config = msgspec.structs.replace(federation.config, qos=QosSection(mode="on"))
    return config


@pytest.fixture
def serve(federation: Any, file: Path) -> Callable[..., PolicyServer]:
    """serve(...): a policy manager in this process."""

    def begin(path: Path = file, **options: Any) -> PolicyServer:
        server = PolicyServer(federation.config, path, **options)
        federation.stack.callback(server.stop)
        server.start()
        return server

    return begin


def policy(pad: DisseminationServer) -> dict[str, Any]:
    """What a delegate says of the policies."""
    found: dict[str, Any] = pad.status()["qos"]["policy"]
    return found


def proxy_of(server: PolicyServer, federation: Any) -> PolicyProxy:
    """Of a manager."""
    (item,) = federation.stack.enter_context(_community(federation.config)).lookup(
        ServiceTemplate(types=(MANAGER_TYPE,))
    )
    assert item.service_id == server.manager
    proxy = PolicyProxy(item.proxy, federation.config.security())
    federation.stack.callback(proxy.close)
    return proxy


def _community(config: Config) -> Any:
    return closing(JoinManager(config, name="test"))


def settings(pad: DisseminationServer) -> list[Any]:
    """What the contracts of a delegate have got."""
    delegate = pad.delegate
    contracts = [
        each.contract for each in (*delegate.tables.subscriptions.values(), *delegate.tables.registrations.values())
    ]
    return [contract.settings for contract in contracts if contract is not None]


# -- in force everywhere ------------------------------------------------------------------------------------------


@pytest.mark.row("Q-13", "Q-14", "Q-16", "Q-34")
def test_all_local_managers_have_one_value_and_say_which_version(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    figures: Any,
    eventually: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given a manager with two policies that overlap, two delegates and a peer publisher, who have no policies
    server = serve()
    alpha, bravo = federation.pad(config=managed), federation.pad("bravo", "paris", managed)
    peer = federation.peer(managed)
    peer.register_publisher(figures.schema, figures.figure_1)
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, listener=lambda _uid, _obj: None)
    subscriber.wait_matched(uid, 2)
    # Expect the more specific one at all of them, and its version told at both ends
    eventually(lambda: len(server.status()["local"]) == 3)
    for pad in (alpha, bravo):
        eventually(lambda pad=pad: policy(pad)["version"] == 1)
        assert policy(pad)["source"] == "manager"
        assert policy(pad)["following"].startswith(server.manager[:8])
    eventually(lambda: {each.importance for each in settings(alpha)} == {2})
    assert {each.deadline for each in settings(alpha)} == {60.0}
    eventually(lambda: {each["version"] for each in server.status()["local"]} == {1})
    # Expect what contracts there are, and what was delivered, to be heard
    eventually(lambda: any(each["contracts"].get("2") for each in server.status()["local"]))
    # When many objects go by
    sent = {lqm: member.number for lqm, member in server._space.members.items()}
    calls = server._control.calls
    for _ in range(300):
        publisher.publish(registration, figures.figure_1)
    publisher.flush()
    # Expect no message about policies for any of them
    assert server._control.calls == calls
    assert {lqm: member.number for lqm, member in server._space.members.items()} == sent
    # Expect what is delivered, and what its link carries, to be seen at the delegate, by its manager and by people; a
    # slow machine looks when the first of it is forgotten, so that there is always more
    proxy = proxy_of(server, federation)

    def seen() -> list[bool]:
        for _ in range(10):
            publisher.publish(registration, figures.figure_1)
        publisher.flush()
        [own] = [row["used"] for row in alpha.status()["qos"]["links"]]
        told = [each for each in proxy.status()["local"] if each["component"] == "alpha@rome"]
        capsys.readouterr()
        assert run(["top", "links", "--json", "--every", "0.1", "--server", alpha.address]) == 0
        [page] = json.loads(capsys.readouterr().out)["servers"]
        shown = [row["used"] for row in page["status"]["qos"]["links"]]
        rates = [each["types"].get(TYPE, 0) for each in told] + [each["links"]["satcom"]["used"] for each in told]
        return [bool(number) for number in (own, *rates, *shown)]

    eventually(lambda: seen() == [True] * 4, what=seen)


STEERED = [
    ("policy.imagery.importance", "5", lambda pad: {each.importance for each in settings(pad)} == {5}),
    ("policy.imagery.preference", "NoDrop", lambda pad: {each.deadline for each in settings(pad)} == {None}),
    ("space.strategy", "strict", lambda pad: pad.quality.tasks.is_strict),
    ("space.shaping", "false", lambda pad: not pad.quality.shaper.is_on),
    ("link.satcom.rate", "800 kbps", lambda pad: pad.status()["qos"]["links"][0]["limit"] == 100_000),
    ('mission."Route Irish".active', "true", lambda pad: {each.replace for each in settings(pad)} == {"type"}),
    ("role.bob", "cas", lambda pad: pad.quality.local.policies.people.roles.get("bob") == "cas"),
]


@pytest.mark.row("Q-14", "Q-70")
def test_each_control_is_in_force_soon(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    figures: Any,
    eventually: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given a contract at a delegate that follows a manager
    server = serve()
    pad = federation.pad(config=managed)
    figures.register(federation.light())
    eventually(lambda: {each.importance for each in settings(pad)} == {2})
    proxy = proxy_of(server, federation)
    for key, value, is_so in STEERED:
        assert not is_so(pad)
        # When somebody sets it
        assert proxy.set(key, value, "").is_new
        # Expect it to hold, without anybody registering anew
        eventually(lambda is_so=is_so: is_so(pad), what=key)
    versions = len(STEERED) + 1
    # Expect contracts to say which version they are by, also where it says nothing else of them
    eventually(lambda: {each.version for each in settings(pad)} == {versions})
    # Expect who and why in the history
    told = proxy.history()
    assert [each.version for each in told] == list(range(1, versions + 1))
    assert told[-1].why == "role.bob = cas"
    assert told[-1].who.startswith("127.0.0.1:")
    # When somebody goes back
    assert proxy.rollback(1, "").version == versions + 1
    eventually(lambda: {each.importance for each in settings(pad)} == {2})
    eventually(lambda: not pad.quality.tasks.is_strict and pad.quality.shaper.is_on)


def test_what_is_required_and_refused_is_asked_for_again_when_the_manager_grants_it(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber who requires what the manager's policies do not grant
    server = serve()
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["version"] == 1)
    figures.register(federation.light())
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, qos=Wish(importance=5, require=("importance",)))
    eventually(lambda: subscriber.losses(uid).get(Cause.REFUSED))
    # When they do
    proxy_of(server, federation).set("policy.imagery.importance", "5", "")
    # Expect it to stand, as soon as with a file
    assert subscriber.wait_matched(uid, timeout=60.0) == 1


def test_a_shared_link_is_divided_and_never_more_than_it_has(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], eventually: Callable[..., Any]
) -> None:
    # Given a link of 1 MB/s, one delegate that has all of it
    server = serve()
    alpha = federation.pad(config=managed)

    def limits(*pads: DisseminationServer) -> list[float]:
        return [row["limit"] or 0.0 for pad in pads for row in pad.status()["qos"]["links"]]

    eventually(lambda: limits(alpha) == [1e6])
    # When another one comes
    bravo = federation.pad("bravo", "paris", managed)
    seen = []

    def both() -> bool:
        found = limits(alpha, bravo)
        seen.append(sum(found))
        return len(found) == 2 and all(limit < 9.6e5 for limit in found)

    eventually(both)
    # Expect the sum to have been within the rate all the time
    assert max(seen) <= 1e6 * (1 + 1e-9)
    # When one ends
    bravo.stop(0.0)
    eventually(lambda: limits(alpha) == [1e6])
    assert len(server.status()["local"]) == 1


def test_shares_follow_what_is_wanted_and_what_goes_stays_within_the_rate(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    file: Path,
    figures: Any,
    eventually: Callable[..., Any],
) -> None:
    # Given a link of 100 KB/s that two delegates share, and who gets something from both
    file.write_text(FILE.replace("8 Mbps", "800 kbps"))
    serve()
    pads = [federation.pad(config=managed), federation.pad("bravo", "paris", managed)]
    publisher, subscriber = federation.light(), federation.subscriber()
    registrations = [
        publisher.register_publisher(
            publisher.connect_to_delegate(*place), figures.schema, figures.figure_1, type_name=name
        )
        for name, place in (("a", ("alpha", "rome")), ("b", ("bravo", "paris")))
    ]
    uids = [subscriber.register_subscriber(type_name=name, bound=1_000) for name in "ab"]
    assert [subscriber.wait_matched(uid) for uid in uids] == [1, 1]
    got, began = 0, time.monotonic()

    def limits() -> list[float]:
        nonlocal got
        found = [row["limit"] or 0.0 for pad in pads for row in pad.status()["qos"]["links"]]
        assert sum(found) <= 100_000 * (1 + 1e-9)
        got += sum(len(obj.payload) for uid in uids for obj in subscriber.drain(uid))
        return found

    # When one of them has more to send than goes, expect it to have all but what the other one starts with
    for _ in range(480):
        publisher.publish(registrations[0], figures.figure_1, bytes(5_000))
    eventually(lambda: limits() == [95_000, 5_000], what=limits)
    # When the other one has as well
    for _ in range(240):
        publisher.publish(registrations[1], figures.figure_1, bytes(5_000))
    eventually(lambda: limits() == [50_000, 50_000], what=limits)
    # Expect what went to have been within the rate
    assert got <= 100_000 * (time.monotonic() - began) * 1.05 + 5_000


def test_the_share_of_one_that_was_killed_is_its_own_again_or_free_when_it_is_gone(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    start: Callable[..., Any],
    tmp_path: Path,
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given two delegates, of which one is a process
    monkeypatch.setattr(channels, "GONE_SECONDS", 1e9)
    server = serve()
    alpha = federation.pad(config=managed)
    locator, state = federation.config.lookup.locators[0], f"policy.state={tmp_path / 'state'}"
    bravo = ("--set", "qos.mode=on", "--set", state, "--set", "lease.lookup=2", "pad", "bravo", "paris", "--json")
    process = start("--locator", locator, *bravo)
    process.fact()

    def limit() -> float:
        rows = alpha.status()["qos"]["links"]
        return float(rows[0]["limit"]) if rows else math.inf  # none before the manager's policies are in force

    def away() -> list[bool]:
        return sorted(each["away"] is not None for each in server.status()["local"])

    eventually(lambda: limit() < 9.6e5 and away() == [False, False] and (tmp_path / "state").exists())
    # When that is killed
    process.end(kill=True)
    eventually(lambda: away() == [False, True])
    assert limit() < 9.6e5
    # Expect it to be one and the same when it is back
    process = start("--locator", locator, *bravo)
    process.fact()
    eventually(lambda: away() == [False, False])
    # Expect what it had to be free when it is in no lookup service any more
    monkeypatch.setattr(channels, "GONE_SECONDS", 0.5)
    process.end(kill=True)
    eventually(lambda: limit() == 1e6)
    assert away() == [False]


def test_where_a_file_says_who_matters_no_manager_is_asked(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    server = serve()
    own, rules = tmp_path / "own.toml", tmp_path / "rules.toml"
    own.write_text('[[policy]]\nname = "mine"\nimportance = 1\n')
    rules.write_text('[[access]]\nallow = ["connect", "status"]\n'.replace("allow = [", "action = ["))
    alone = federation.pad(config=msgspec.structs.replace(managed, policy=PolicySection(file=str(own))))
    # Expect one whose file has access rules alone to follow
    ruled = federation.pad("bravo", "paris", msgspec.structs.replace(managed, policy=PolicySection(file=str(rules))))
    eventually(lambda: policy(ruled)["source"] == "manager")
    assert [each["component"] for each in server.status()["local"]] == ["bravo@paris"]
    assert (policy(alone)["source"], policy(alone)["following"], policy(alone)["policies"]) == ("file", "", 1)
    # When those rules change, expect the policies to stay
    rules.write_text('[[access]]\naction = "*"\n')
    eventually(lambda: ruled.status()["access"]["version"] == 2)
    assert (policy(ruled)["source"], policy(ruled)["policies"]) == ("manager", 2)
    # When the file says who matters for a while, expect that to be in force, and then the manager's again, links too
    rules.write_text(
        own.read_text() + FILE.partition("\n[[link]]")[1] + FILE.partition("[[link]]")[2].replace("8 Mbps", "80 kbps")
    )
    eventually(lambda: (policy(ruled)["source"], policy(ruled)["policies"]) == ("file", 1))
    assert [row["limit"] for row in ruled.status()["qos"]["links"]] == [1e4]
    rules.write_text('[[access]]\naction = "*"\n')
    eventually(lambda: (policy(ruled)["source"], policy(ruled)["policies"]) == ("manager", 2))
    assert [row["limit"] for row in ruled.status()["qos"]["links"]] == [1e6]


def test_without_a_manager_the_default_is_in_force_and_that_is_told(federation: Any, managed: Config) -> None:
    pad = federation.pad(config=managed)
    assert policy(pad)["source"] == "nobody"
    assert "no policies are in force" in policy(pad)["following"]


# -- who may ------------------------------------------------------------------------------------------------------


def test_access_rules_of_the_file_say_who_may_steer_and_are_never_pushed(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    file: Path,
    eventually: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file.write_text('[[access]]\naction = ["peer", "status", "connect"]\n' + FILE)
    server = serve()
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["version"] == 1)
    proxy = proxy_of(server, federation)
    for call in (
        lambda: proxy.set("space.strategy", "strict", ""),
        lambda: proxy.apply("", ""),
        lambda: proxy.rollback(1, ""),
    ):
        with pytest.raises(AccessDeniedError):
            call()
    # and that people are told so in one line
    assert run(["policy", "set", "space.strategy", "strict", "--at", server.address]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("jbi: 127.0.0.1:")
    assert "access" not in proxy.text()
    assert pad.status()["access"] == {}
    # Expect that nobody follows who may not
    file.write_text('[[access]]\naction = "status"\n' + FILE)
    eventually(lambda: server.status()["access"]["version"] == 2)
    with pytest.raises(AccessDeniedError):
        proxy.join(Joining("x", "x", PolicyStanding()))
    eventually(lambda: policy(pad)["following"].startswith("stale"), what=lambda: policy(pad))
    # and that who may again does
    file.write_text('[[access]]\naction = ["peer", "status"]\n' + FILE)
    eventually(lambda: policy(pad)["following"].startswith(server.manager[:8]), what=lambda: policy(pad))


# -- what is kept -------------------------------------------------------------------------------------------------


def test_the_history_outlives_a_restart_and_a_changed_file_is_a_new_version(
    federation: Any, serve: Callable[..., PolicyServer], file: Path, tmp_path: Path
) -> None:
    state = tmp_path / "history"
    first = serve(state=state)
    first.change(lambda space, now: space.proposed_value("space.strategy", "strict", "alice", "", now))
    first.stop()
    # Expect the same manager, and what was set, which the file does not say
    second = serve(state=state)
    assert second.standing == first.standing
    assert [(each.version, each.who) for each in second.history()] == [(1, "file"), (2, "alice")]
    second.stop()
    # When the file is changed meanwhile
    file.write_text(FILE.replace("importance = 2", "importance = 3"))
    third = serve(state=state)
    assert third.standing.version == 3
    assert third.history()[-1].why.endswith("policy.toml has changed")
    assert PolicySet.parse(third.text(0)).space.strategy.name == "weighted_fair"
    # Expect a file that was in force already to leave what was set since
    third.change(lambda space, now: space.proposed_value("space.strategy", "strict", "alice", "", now))
    third.stop()
    fourth = serve(state=state)
    assert (fourth.standing.version, fourth.standing.digest) == (4, third.standing.digest)
    # Expect a second process to be kept from the same history
    with pytest.raises(StorageError, match="locked"):
        PolicyServer(federation.config, file, state=state)


def test_shares_of_links_outlive_a_restart(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    file: Path,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    # Given two who share a link, and are still there when the manager is not
    server = serve(state=tmp_path / "history")
    pads = [federation.pad(config=managed), federation.pad("bravo", "paris", managed)]

    def limits() -> list[float]:
        return [row["limit"] or 0.0 for pad in pads for row in pad.status()["qos"]["links"]]

    eventually(lambda: len(limits()) == 2 and sum(limits()) == pytest.approx(1e6))
    eventually(lambda: server.status()["local"][0]["version"] == 1)
    server.stop()
    # Expect it to know what they have before they come again
    again = PolicyServer(federation.config, file, state=tmp_path / "history")
    federation.stack.callback(again.stop)
    members = again._space.members.values()
    assert {each.component: each.ceilings["satcom"] for each in members} == {
        "alpha@rome": pytest.approx(limits()[0]), "bravo@paris": pytest.approx(limits()[1]),
    }  # fmt: skip
    assert all(each.away_since is not None for each in members)


def test_a_manager_that_leaves_divides_nothing_and_looks_for_no_others_any_more(
    serve: Callable[..., PolicyServer], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a manager whose leaving takes longer than the time between two steps
    server = serve()
    looks: list[int] = []
    monkeypatch.setattr(server._rivals, "look", looks.append)
    eventually(lambda: looks)
    leave, before = server._community.close, 0

    def hang() -> None:
        nonlocal before
        leave()
        before = len(looks)
        server._wake()
        time.sleep(1.5 * channels.TICK_SECONDS)

    monkeypatch.setattr(server._community, "close", hang)
    # When it leaves; Expect no step behind that
    server.stop()
    assert len(looks) == before
    monkeypatch.undo()


def test_a_full_disk_is_told_and_nothing_is_in_force_that_is_not_kept(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    server = serve(state=tmp_path / "history")
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["version"] == 1)
    proxy = proxy_of(server, federation)
    base = server._history._base
    base.execute(f"PRAGMA max_page_count = {base.execute('PRAGMA page_count').fetchone()[0]}").fetchall()
    large = "".join(f'[[policy]]\nname = "{number}"\nuser = "{"u" * 100}"\nimportance = 1\n' for number in range(500))
    with pytest.raises(StorageError, match="full"):
        proxy.apply(large, "")
    assert (server.standing.version, policy(pad)["version"]) == (1, 1)
    # When there is room again
    base.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert proxy.apply(large, "").version == 2
    eventually(lambda: policy(pad)["version"] == 2)


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\xff\xfe", STATE_MARK.encode() + b"[1]\n", None])
def test_a_delegate_starts_with_what_it_had_or_says_why_not(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    tmp_path: Path,
    eventually: Callable[..., Any],
    damage: bytes | None,
) -> None:
    state = tmp_path / "state.toml"
    config = msgspec.structs.replace(managed, policy=PolicySection(state=str(state)))
    server = serve()
    pad = federation.pad(config=config)
    eventually(lambda: policy(pad)["version"] == 1 and state.exists())
    pad.stop(0.0)
    server.stop()
    if damage is not None:
        state.write_bytes(damage)
    # When it starts, and the manager does not
    again = federation.pad(config=config)
    if damage is None:
        assert (policy(again)["source"], policy(again)["version"], policy(again)["policies"]) == ("state", 1, 2)
        assert policy(again)["following"].startswith("stale")
    else:
        assert "can't be used" in policy(again)["fault"]
        assert policy(again)["source"] == "nobody"


# -- managers that die, stop, come back, or are two ---------------------------------------------------------------


@pytest.fixture
def processes(federation: Any, start: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """processes(...): a policy manager as a process, when it is ready."""

    def begin(*options: str) -> Any:
        locator = federation.config.lookup.locators[0]
        lease = ("--set", "lease.lookup=2.0")
        process = start("--locator", locator, *lease, "policy", "serve", str(file), *options, "--json")
        process.fact()
        return process

    return begin


def test_who_follows_goes_on_without_the_manager_and_is_in_step_when_it_is_back(
    federation: Any,
    managed: Config,
    processes: Callable[..., Any],
    file: Path,
    figures: Any,
    eventually: Callable[..., Any],
) -> None:
    manager = processes()
    pad = federation.pad(config=managed)
    figures.register(federation.light())
    eventually(lambda: {each.importance for each in settings(pad)} == {2})
    # When it is stopped (SIGSTOP)
    manager.signal(signal.SIGSTOP)
    eventually(lambda: policy(pad)["following"].startswith("stale"))
    assert {each.importance for each in settings(pad)} == {2}
    manager.signal(signal.SIGCONT)
    eventually(lambda: not policy(pad)["following"].startswith("stale"))
    # When it is killed
    manager.end(kill=True)
    eventually(lambda: policy(pad)["following"].startswith("stale"))
    limits = [row["limit"] for row in pad.status()["qos"]["links"]]
    assert limits == [1e6]
    assert {each.importance for each in settings(pad)} == {2}
    # and the lookup service to forget it with its lease, as any service
    eventually(lambda: not _listed(federation))
    # Expect a contract that opens now to get what is in force
    figures.register(federation.light())
    assert {each.importance for each in settings(pad)} == {2}
    # When it comes back, with another file
    file.write_text(FILE.replace("importance = 2", "importance = 3"))
    processes()
    eventually(lambda: {each.importance for each in settings(pad)} == {3})
    assert policy(pad)["version"] == 2


def test_a_manager_with_an_older_set_is_refused_until_it_takes_over(
    federation: Any, managed: Config, processes: Callable[..., Any], file: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate at version 2
    manager = processes("--ephemeral")
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["version"] == 1)
    locator = federation.config.lookup.locators[0]
    assert run(["--locator", locator, "policy", "set", "policy.imagery.importance", "5"]) == 0
    eventually(lambda: policy(pad)["version"] == 2)
    # When the manager is killed, and begins with the file, without its history
    manager.end(kill=True)
    older = processes("--ephemeral")
    # Expect it to be refused, which both tell
    eventually(lambda: "is followed" in policy(pad)["fault"], what=lambda: policy(pad))
    assert policy(pad)["version"] == 2
    older.end()
    # When it is to have the say
    processes("--ephemeral", "--take-over")
    eventually(lambda: policy(pad)["version"] == 1)
    assert policy(pad)["fault"] == ""
    assert pad.quality is not None


def test_a_second_manager_is_refused_or_takes_over(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], file: Path, eventually: Callable[..., Any]
) -> None:
    first = serve()
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["following"].startswith(first.manager[:8]))
    # When another one starts
    with pytest.raises(PolicyError, match="serves this space already"):
        serve()
    # When it is to take over
    second = serve(take_over=True)
    # Expect the delegate to follow it, and the first one to say so and change nothing any more
    eventually(lambda: policy(pad)["following"].startswith(second.manager[:8]))
    eventually(lambda: "has taken over, with epoch 2" in first.status()["fault"])
    with pytest.raises(PolicyError, match="taken over"):
        first.change(lambda space, now: space.proposed("", "me", "", now))
    assert second.status()["fault"] == ""


def test_a_history_of_a_backup_is_older_too(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate at version 2, and a copy of the history of when there was one version
    state, copy = tmp_path / "history", tmp_path / "copy"
    serve(state=state).stop()
    shutil.copy(state, copy)
    server = serve(state=state)
    server.change(lambda space, now: space.proposed_value("space.strategy", "strict", "me", "", now))
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["version"] == 2)
    server.stop()
    # When the manager goes on from the copy
    older = serve(state=copy)
    eventually(lambda: "version 1 is older than 2" in policy(pad)["fault"])
    assert policy(pad)["version"] == 2
    older.stop()
    # Expect it to be followed when it takes over
    serve(state=copy, take_over=True)
    eventually(lambda: (policy(pad)["version"], policy(pad)["fault"]) == (1, ""))


def test_a_manager_that_refuses_to_be_looked_at_is_one_all_the_same(
    federation: Any, serve: Callable[..., PolicyServer], file: Path, eventually: Callable[..., Any]
) -> None:
    file.write_text('[[access]]\naction = "peer"\n' + FILE)
    first = serve()
    community = federation.stack.enter_context(_community(federation.config))
    managers = ServiceTemplate(types=(MANAGER_TYPE,))
    eventually(lambda: [each.service_id for each in community.lookup(managers)] == [first.manager])
    with pytest.raises(PolicyError, match="serves this space already"):
        serve()


def test_two_managers_of_one_epoch_are_told_by_both_and_nobody_moves(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    file: Path,
    tmp_path: Path,
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = serve()
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["following"].startswith(first.manager[:8]))
    # Given a second one, which did not see the first when it started
    monkeypatch.setattr(RivalManagers, "look_at_start", lambda _self: 0)
    other = tmp_path / "other.toml"
    other.write_text(FILE.replace("importance = 2", "importance = 1"))
    second = serve(other)
    eventually(lambda: "same epoch 1" in first.status()["fault"] and "same epoch 1" in second.status()["fault"])
    assert policy(pad)["following"].startswith(first.manager[:8])
    # Expect it not to be let in there
    with pytest.raises(PolicyError, match="is followed"):
        second.join(Joining("x", "x", first.standing), Caller("192.0.2.7:9"))


def test_a_manager_that_was_killed_counts_for_nobody(
    federation: Any, serve: Callable[..., PolicyServer], file: Path
) -> None:
    # Given what the lookup services still hold of a manager that was killed, with a later epoch
    with socket.create_server(("127.0.0.1", 0)) as sock:
        gone = f"127.0.0.1:{sock.getsockname()[1]}"
    community = federation.stack.enter_context(_community(federation.config))
    entry = PolicyManager(epoch=7, address=gone).rep()
    community.join(ServiceItem("killed", (MANAGER_TYPE,), ServiceRef("killed", POLICY_MANAGER, (gone,)), (entry,)))
    community.wait_joined("killed", 20.0)
    # When there is one that lives
    server = serve()
    server._rivals.watch.wait(2, 20.0)
    server._step()
    # Expect it to be in charge, and people to be sent to it
    assert server.status()["fault"] == ""
    assert steering._found(federation.config).endpoints == (server.address,)


def test_a_connection_of_before_takes_nothing_from_the_one_that_came_instead(
    serve: Callable[..., PolicyServer], file: Path
) -> None:
    # Given a local manager that was cut off, and has joined again before its old connection was noticed to be over
    file.write_text('[[policy]]\nname = "imagery"\nimportance = 2\n')
    server = serve()
    server.join(Joining("x", "alpha@rome"), Caller("192.0.2.7:9"))
    before = server._channels._channels["x"]
    server.join(Joining("x", "alpha@rome"), Caller("192.0.2.7:9"))
    now = server._channels._channels["x"]
    # When it is the old one's turn first
    assert [item for item in before._take(1, 1 << 20) if item != (ALIVE,)] == []
    # Expect the new one to get what is in force
    [(kind, _)] = now._take(1, 1 << 20)
    assert kind == NEWS


# -- what strangers send ------------------------------------------------------------------------------------------


def follower(config: Config) -> tuple[Following, list[tuple[PolicySet, Any]]]:
    """One that nobody has sent anything, and what it puts in force."""
    installed: list[tuple[PolicySet, Any]] = []
    return Following(config, "alpha@rome", lambda *args: installed.append(args)), installed


def news(text: str, version: int, **changes: Any) -> list[memoryview]:
    """As a manager sends it."""
    standing = PolicyStanding(
        "m" * 32, changes.pop("epoch", 1), version, changes.pop("digest", PolicySet.parse(text).digest)
    )
    sent = PolicyNews(changes.pop("number", version), standing, changes.pop("rates", {}), text)
    return [memoryview(NEWS + msgspec.msgpack.encode(sent))]


def test_what_can_t_be_used_leaves_in_force_what_was(fixtures: Any) -> None:
    following, installed = follower(fixtures.test_config())
    following._receive(news(FILE, 5, rates={"satcom": 500.0}))
    assert following._standing.version == 5
    # Expect older policies, and another text under the same number, to end the connection
    large = [memoryview(NEWS + bytes(3 << 20))]
    for hostile in (news(FILE, 4), news('[role]\na = "b"\n', 5), news(FILE, 9, epoch=0), [memoryview(b"X")], large):
        with pytest.raises(ProtocolError):
            following._receive(hostile)
    with pytest.raises(ProtocolError):
        following._receive([memoryview(NEWS + b"\xff" * 100)])
    # Expect access rules, a broken text and a wrong digest to be told, and shares to hold all the same
    for number, (text, why) in enumerate(
        [
            ('[[access]]\naction = "status"\n', "access rules"),
            ("[[", "can't be used"),
            (FILE + "\n[role]\na = 1\n", "can't"),
        ],
        6,
    ):
        digest = "0" * 64
        sent = PolicyNews(number, PolicyStanding("m" * 32, 1, number, digest), {"satcom": 400.0 + number}, text)
        following._receive([memoryview(NEWS + msgspec.msgpack.encode(sent))])
        assert why in following.status()["fault"]
        assert installed[-1][0].version == 5
        assert installed[-1][1] == {"satcom": 400.0 + number}
        report = msgspec.msgpack.decode(following._note(), type=LqmReport)
        assert (report.number, report.standing.version, report.fault != "") == (number, 5, True)
    # When it can be used again
    following._receive(news(FILE.replace("= 2", "= 1"), 9))
    assert following.status()["fault"] == ""
    assert installed[-1][0].version == 9


def test_a_state_that_can_t_be_written_is_told_and_ends_no_connection(fixtures: Any, tmp_path: Path) -> None:
    # Given a state in a folder that turns out to be a file, so that a half-written one can't be removed there either
    (tmp_path / "folder").write_text("")
    section = PolicySection(state=str(tmp_path / "folder" / "alpha.state"))
    following, installed = follower(msgspec.structs.replace(fixtures.test_config(), policy=section))
    # When it starts, and when something is to be kept, expect both to be told
    following._recover()
    assert "can't be used" in following.status()["fault"]
    following._receive(news(FILE, 1))
    assert installed[-1][0].version == 1
    assert "not kept" in following.status()["fault"]


def test_hostile_shares_are_bounded_so_that_another_manager_can_be_joined_with_them(fixtures: Any) -> None:
    following, installed = follower(fixtures.test_config())
    # Given shares that are no numbers to reckon with
    hostile = {"a": math.inf, "b": math.nan, "c": -1.0, "d": 1.7e308}
    following._receive(news(FILE, 5, rates=hostile))
    assert installed[-1][1] == {"a": 1e15, "b": 1.0, "c": 1.0, "d": 1e15}
    # Expect more of them, or longer names, than a manager takes to end the connection
    for rates in ({str(number): 1.0 for number in range(1_001)}, {"x" * 201: 1.0}):
        with pytest.raises(ProtocolError):
            following._receive(news(FILE, 6, rates=rates))
    # and a text that is too long to be refused before it is read
    sent = PolicyNews(7, PolicyStanding("m" * 32, 1, 7, "0" * 64), {}, "\n" * 1_500_000)
    item = memoryview(NEWS + msgspec.msgpack.encode(sent))
    began = time.thread_time()
    following._receive([item])
    assert "1500000 characters" in following.status()["fault"]
    assert time.thread_time() - began < 10.0
    assert following._standing.version == 5


def test_a_pipe_in_the_place_of_the_state_holds_nobody_up(fixtures: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state")
    policy_section = PolicySection(state=str(tmp_path / "state"))
    following, _ = follower(msgspec.structs.replace(fixtures.test_config(), policy=policy_section))
    following._recover()
    assert "can't be used" in following.status()["fault"]


def test_nobody_follows_or_leaves_under_the_id_of_anothers_that_is_here(
    federation: Any, managed: Config, serve: Callable[..., PolicyServer], eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Given a delegate that follows, and another party that may follow as well
    server = serve()
    pad = federation.pad(config=managed)
    [told] = eventually(lambda: [each for each in server.status()["local"] if each["version"]])
    calls, stranger = policy_server._Calls(server), Caller("192.0.2.7:1")
    # When that one names the delegate's id, which every lookup service tells; Expect it to be refused
    with pytest.raises(PolicyError, match="another party's"):
        calls.join(stranger, Joining(told["id"], "evil@rome"))
    with pytest.raises(PolicyError, match="another party's"):
        calls.leave(stranger, told["id"])
    calls.join(stranger, Joining("mine", "evil@rome", before=told["id"]))
    assert {each["id"]: each["component"] for each in server.status()["local"]} == {
        told["id"]: told["component"], "mine": "evil@rome",
    }  # fmt: skip
    # Expect the delegate to get what is new over the connection that it has
    calls.set(stranger, "space.strategy", "strict", "")
    eventually(lambda: policy(pad)["version"] == 2)
    # When that one comes under more and more ids; Expect room for others
    monkeypatch.setattr(channels, "MEMBERS_MOST", 8)
    for number in range(5):
        calls.join(stranger, Joining(f"fake-{number}", "evil@rome"))
    with pytest.raises(OversizeError, match="6 local managers of one party"):
        calls.join(stranger, Joining("fake-5", "evil@rome"))
    calls.join(stranger, Joining("mine", "evil@rome"))


def test_hostile_reports_and_calls_end_nobody_else(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    eventually: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serve()
    pad = federation.pad(config=managed)
    eventually(lambda: len(server.status()["local"]) == 1)
    proxy = proxy_of(server, federation)
    # Expect absurd calls to be refused
    for call in (
        lambda: proxy.join(Joining("", "x", rates={})),
        lambda: proxy.join(Joining("x" * 65, "x", rates={})),
        lambda: proxy.join(Joining("x", "y" * 300, rates={})),
        lambda: proxy.join(Joining("x", "y", rates={str(n): 1.0 for n in range(2_000)})),
        lambda: proxy.apply("x" * 9_000_000, ""),
        lambda: proxy.apply("[[", ""),
        lambda: proxy.text(-1),
        lambda: proxy.rollback(10**9, ""),
    ):
        with pytest.raises(JbiError):
            call()
    # Given one that says absurd things of itself
    proxy.join(Joining("y" * 32, "hostile", rates={"satcom": math.inf}))
    channel = server._channels._channels["y" * 32]
    for note in (b"x" * (10 << 20), b"\xc1", msgspec.msgpack.encode({"number": "x"})):
        with pytest.raises(ProtocolError):
            channel._acked(0, note)
    use = LinkUse(math.nan, math.inf, (math.inf, math.nan, -1.0, 0.0, 1e300))
    report = LqmReport(0, PolicyStanding(), fault="\x1b[2J<script>", links={"satcom": use})
    channel._acked(0, msgspec.msgpack.encode(report))
    assert json.dumps(proxy.status(), allow_nan=False)
    assert run(["policy", "history", "--at", server.address]) == 0
    assert "\x1b" not in capsys.readouterr().out
    # Expect the one that was there to have what it had, and to follow
    assert proxy.set("policy.imagery.importance", "5", "").version == 2
    eventually(lambda: policy(pad)["version"] == 2)


def test_what_links_would_take_is_what_goes_and_all_where_something_waits() -> None:
    uses = Uses()
    row = LinkStatus(
        name="satcom", limit=1000.0, used=10, sent_by_level=[0, 0, 0, 0, 0], waiting_by_level=[0] * 5, rtt_ms=5.0
    )
    uses.look([row], 1.0)
    changed = msgspec.structs.replace
    found = uses.look([changed(row, sent_by_level=[0, 0, 500, 0, 100], waiting_by_level=[2, 0, 0, 0, 0])], 2.0)
    assert found["satcom"].demand == (math.inf, 0.0, 500.0, 0.0, 100.0)
    # Expect what waits for what is under way to count at the levels that go
    found = uses.look([changed(row, sent_by_level=[0, 0, 500, 0, 300], backlog=5)], 3.0)
    assert found["satcom"].demand == (0.0, 0.0, 0.0, 0.0, math.inf)


# -- at the command line ------------------------------------------------------------------------------------------


def test_people_steer_by_commands(
    federation: Any,
    managed: Config,
    serve: Callable[..., PolicyServer],
    file: Path,
    eventually: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serve()
    pad = federation.pad(config=managed)
    eventually(lambda: policy(pad)["version"] == 1)
    at = ["--locator", federation.config.lookup.locators[0], "policy"]

    def said(*words: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert run([*at, *words]) == code, words
        found = capsys.readouterr()
        return found.out, found.err

    # Expect differences, versions, and a rest that is left alone
    file.write_text(FILE.replace("importance = 2", "importance = 3"))
    assert said("apply", str(file), "--why", "night")[0] == (
        "~ policy imagery: importance: 2 -> 3\nversion 2 is in force\n"
    )
    assert said("apply", str(file))[0] == "version 2 is in force already, and says that\n"
    assert said("set", "space.strategy", "strict", "--at", server.address)[0] == "version 3 is in force\n"
    assert json.loads(said("rollback", "1", "--json")[0]) == {"version": 4, "changed": True}
    out = said("history")[0]
    assert "space.strategy = strict" in out
    assert "night" in out
    assert "alpha@rome" in out
    assert said("history", "1")[0] == server.text(1)
    told = json.loads(said("history", "--json")[0])
    assert [each["version"] for each in told["versions"]] == [1, 2, 3, 4]
    # Expect mistakes to be told with what would be right
    assert "Did you mean 'imagery'" in said("set", "policy.imagry.importance", "5", code=1)[1]
    assert "Kept are 1 to 4" in said("rollback", "9", code=1)[1]
    assert (
        "its policy file has no policies of quality"
        in said("set", "space.strategy", "strict", "--at", pad.address, code=1)[1]
    )
    assert "is no policy manager" in said("apply", str(file), "--at", pad.address, code=2)[1]
    file.write_text("[[policy]]\nnme = 1\n")
    assert "policy.toml:1:1" in said("apply", str(file), code=2)[1]
    assert server.standing.version == 4
    server.stop()
    eventually(lambda: not _listed(federation))
    assert "Start one: jbi policy serve FILE" in said("history", code=2)[1]


def _listed(federation: Any) -> Any:
    with _community(federation.config) as community:
        return community.lookup(ServiceTemplate(types=(MANAGER_TYPE,)))
