"""Applications that are monitored and steered, and clients who do that, over real lookup services and delegates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import ArchiveSection, PolicySection
from jbi_pubsub.core.errors import (
    AdapterStateError,
    ConfigurationError,
    EntryError,
    MetadataError,
    PredicateError,
    UnknownUidError,
    WireTimeoutError,
)
from jbi_pubsub.core.info_object import Head, InfoObject, pack
from jbi_pubsub.core.state import IllegalTransitionError
from jbi_pubsub.domains import client
from jbi_pubsub.domains.application import APPLICATION, Application
from jbi_pubsub.domains.channel import ListenerChannel, ListenerQueue, told
from jbi_pubsub.domains.domain import Domain
from jbi_pubsub.domains.event import MONITORING, STEERING, StructuredEvent
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE
from tests.conftest import Federation


class Grid:
    """A simulation: what it says of itself, and what can be set."""

    def __init__(self) -> None:
        self.alpha, self.step = 0.5, 0

    def set_alpha(self, value: Any) -> None:
        if not isinstance(value, float):
            raise ValueError("alpha is a fraction")
        self.alpha = value

    def state(self) -> dict[str, Any]:
        self.step += 1
        return {"alpha": self.alpha, "step": self.step}


def _nobody(event: StructuredEvent) -> None:
    """Listen to nothing."""


def _heat(domain: Domain, name: str = "heat", period: float = 0.05) -> Application:
    grid = Grid()
    made = domain.application(name, grid.state, period=period, categories=("junior", "senior"))
    made.steer("alpha", set=grid.set_alpha, get=lambda: grid.alpha)
    return made


@pytest.mark.row("D-37")
@pytest.mark.row("D-40")
def test_event_is_the_same_after_its_way_through_xml() -> None:
    body = {"step": 3, "residual": 1e-7, "state": "a<b'\"", "done": True, "roles": ("x", ""), "none": ()}
    event = StructuredEvent("heat", "Monitoring", "step 3", body, {"priority": 5}, b"\0\xff")
    assert StructuredEvent.read(event.metadata(), event.remainder) == event


@pytest.mark.parametrize(
    "body",
    [{"not": 1}, {"a b": 1}, {"a": float("nan")}, {"a": None}, {"a": ("x", 1)}, {"a": "\0"},
     {f"a{n}": 1 for n in range(1_001)}],
)  # fmt: skip
def test_body_that_no_constraint_could_ask_of_is_refused(body: Any) -> None:
    with pytest.raises(MetadataError):
        StructuredEvent("heat", "Monitoring", "", body).metadata()


@pytest.mark.parametrize(
    "metadata", [b"", b"<event/>", b"<event><header/></event>", b"<a><header/><body><x number='y'/></body></a>"]
)
def test_what_is_no_event_is_refused(metadata: bytes) -> None:
    with pytest.raises(MetadataError):
        StructuredEvent.read(metadata)


@pytest.mark.row("D-02")
@pytest.mark.row("D-08")
@pytest.mark.row("D-09")
@pytest.mark.row("D-38")
@pytest.mark.row("D-44")
def test_application_is_found_watched_and_steered(domain: Callable[[], Domain], eventually: Callable[..., Any]) -> None:
    # Given an application, and a client of another process's domain
    here = domain()
    _heat(here)
    anna = domain().client("anna")
    (found,) = anna.find("name == 'heat' and 'junior' in categories")
    eventually(lambda: anna.find("'alpha' in parameters"))
    # When she watches it by a constraint, and sets a parameter
    seen: list[StructuredEvent] = []
    anna.watch(found, "alpha < 0.3", seen.append)
    anna.set(found, "alpha", 0.25)
    # Expect the next events to show it, and none before
    eventually(lambda: len(seen) >= 2)
    assert {each.body["alpha"] for each in seen} == {0.25}
    assert (seen[0].domain, seen[0].type, seen[0].name) == ("heat", "Monitoring", "running")
    assert anna.get("heat", "alpha") == 0.25
    # and what it does not take to be said
    with pytest.raises(ConfigurationError, match="alpha is a fraction"):
        anna.set("heat", "alpha", "much")
    with pytest.raises(ConfigurationError, match="no parameter 'beta'"):
        anna.get("heat", "beta")
    with pytest.raises(PredicateError):
        anna.watch("heat", "alpha <", seen.append)
    # and what it gives that is no value
    broken = here.application("broken", dict)
    broken.steer("list", get=lambda: [1, 2])  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="property value is"):
        anna.get("broken", "list")


@pytest.mark.row("D-43")
def test_states_are_told_and_illegal_ones_refused(domain: Callable[[], Domain], eventually: Callable[..., Any]) -> None:
    here = domain()
    heat, anna = _heat(here), here.client("anna")
    states: list[Any] = []
    anna.watch("heat", "", lambda event: states.append(event.body["state"]))
    eventually(lambda: "running" in states)
    heat.enter("computing")
    eventually(lambda: "computing" in states)
    anna.pause("heat")
    eventually(lambda: "paused" in states)
    with pytest.raises(IllegalTransitionError):
        heat.enter("computing")
    with pytest.raises(ConfigurationError, match="can't happen"):
        anna.pause("heat")
    with pytest.raises(ConfigurationError, match="no state"):
        heat.enter("sleeping")
    anna.resume("heat")
    eventually(lambda: states[-1] == "running")


@pytest.mark.row("D-43")
def test_monitoring_events_come_at_their_period(domain: Callable[[], Domain], eventually: Callable[..., Any]) -> None:
    here = domain()
    times: list[float] = []
    here.application("clock", lambda: times.append(time.monotonic()) or {}, period=0.1)  # type: ignore[func-returns-value]
    eventually(lambda: len(times) >= 21)
    assert (times[20] - times[0]) / 20 == pytest.approx(0.1, rel=0.1)


def test_application_that_was_steered_tells_again_after_its_period(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given an application that is steered, and enters states, many times within one period
    here, told = domain(), list[str]()
    clock = here.application("clock", lambda: told.append("") or {}, period=0.5)  # type: ignore[func-returns-value]
    clock.steer("alpha", set=lambda value: None)  # noqa: ARG005  # whatever it is
    anna = here.client("anna")
    for number in range(30):
        anna.set("clock", "alpha", number)
        clock.enter("running" if number % 2 else "computing")
    # When nobody does so any more, expect the next ones in their time
    before, began = len(told), time.monotonic()
    eventually(lambda: len(told) >= before + 4)
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize(("name", "period"), [("", 1.0), ("heat", 0.0), ("heat", -1.0), ("heat", float("nan"))])
def test_application_without_a_name_or_a_period_is_refused(
    domain: Callable[[], Domain], name: str, period: float
) -> None:
    with pytest.raises(ConfigurationError, match="period"):
        domain().application(name, dict, period=period)


def test_client_without_a_name_is_refused(domain: Callable[[], Domain]) -> None:
    with pytest.raises(ConfigurationError, match="without a name"):
        domain().client("")


@pytest.mark.row("D-45")
def test_applications_of_one_channel_get_their_own_commands(domain: Callable[[], Domain]) -> None:
    here = domain()
    for name in ("heat", "flow", "o'neil"):
        _heat(here, name)
    anna = here.client("anna")
    for number, name in enumerate(("heat", "flow", "o'neil"), 1):
        anna.set(name, "alpha", number / 10)
    assert [anna.get(name, "alpha") for name in ("heat", "flow", "o'neil")] == [0.1, 0.2, 0.3]


def test_who_does_not_answer_is_gone_or_late(domain: Callable[[], Domain], eventually: Callable[..., Any]) -> None:
    here = domain()
    anna, gate = here.client("anna"), threading.Event()
    with pytest.raises(UnknownUidError, match="is not there"):
        anna.set("heat", "alpha", 0.1, timeout=0.2)
    slow = here.application("slow", dict)
    slow.steer("gate", get=lambda: gate.wait(30.0))
    try:
        with pytest.raises(WireTimeoutError, match="did not answer"):
            anna.get("slow", "gate", timeout=0.3)
    finally:
        gate.set()
    slow.close()
    eventually(lambda: not anna.find("name == 'slow'"))


def test_command_that_comes_late_behind_its_repetition_is_done_once(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given commands of one id, as two ways may bring them, and others without an id, or with a long one
    here, done, answers = domain(), list[Any](), list[StructuredEvent]()
    here.application("heat", dict).steer("alpha", set=done.append)
    here.listen(STEERING, "$domain == 'anna'", told(answers.append))
    for number, said in enumerate((
        {"id": "7", "again": True}, {"id": "7"}, {"id": ""}, {"id": ""},
        {"id": "x" * 300 + "1"}, {"id": "x" * 300 + "2"},
    )):  # fmt: skip
        body = {"parameter": "alpha", "value": float(number), "client": "anna", **said}
        here.publish(StructuredEvent("heat", "Steering", "set", body), STEERING)
    # Expect an answer to each, and the second one not to be done
    eventually(lambda: len(answers) == 6)
    assert sorted(done) == [0.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("lost", ["set", "answer"])
def test_command_or_answer_that_is_lost_comes_again_and_is_done_once(
    domain: Callable[[], Domain], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    # Given a way that carries nothing until something has been said, as a bridge's that brings what is wanted
    here, done, followed = domain(), list[Any](), list[StructuredEvent]()
    publish, dropped = here.publish, list[str]()

    def carried(event: StructuredEvent, type_: str) -> str:
        if event.name == lost and not dropped:
            dropped.append(event.name)
            return ""
        return publish(event, type_)

    monkeypatch.setattr(here, "publish", carried)
    monkeypatch.setattr("jbi_pubsub.domains.client.SAID_AGAIN", 0.2)
    slow = here.application("heat", dict)
    slow.steer("alpha", set=done.append)
    anna = here.client("anna")
    here.client("eve").follow("anna", followed.append)
    # When a client commands; Expect it to be done, once, and the client to have its answer
    anna.set("heat", "alpha", 0.5, timeout=30.0)
    anna.set("heat", "alpha", 0.6, timeout=30.0)
    assert (dropped, done) == ([lost], [0.5, 0.6])
    # Expect who follows to be told of no command twice
    eventually(lambda: followed and followed[-1].body["value"] == 0.6)
    assert [each.body["value"] for each in followed] == ([0.6] if lost == "set" else [0.5, 0.6])


@pytest.mark.row("D-47")
def test_clients_talk_to_each_other_and_in_groups(domain: Callable[[], Domain], eventually: Callable[..., Any]) -> None:
    heard: dict[str, list[Any]] = {"anna": [], "bob": [], "eve": []}
    anna, bob, _ = (
        domain().client(name, lambda event, of=said: of.append((event.name, event.body["text"], event.remainder)))
        for name, said in heard.items()
    )
    anna.talk("bob", "look at x=3", b"\0picture")
    bob.talk("anna", "I do")
    bob.join("heat-team")
    anna.talk("heat-team", "a break")
    eventually(lambda: len(heard["bob"]) == 2 and len(heard["anna"]) == 1)
    assert heard["bob"] == [("anna", "look at x=3", b"\0picture"), ("anna", "a break", b"")]
    bob.part("heat-team")
    with pytest.raises(UnknownUidError):
        bob.part("heat-team")
    assert heard["eve"] == []


@pytest.mark.row("D-46")
def test_who_follows_a_client_sees_its_actions_and_what_it_watches(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given an application that bob watches
    here = domain()
    _heat(here)
    _heat(here, "flow")
    bob, anna = here.client("bob"), domain().client("anna")
    bob.watch("heat", "alpha > 0.4", _nobody)
    # When anna follows him, expect the events that he gets, and his commands
    seen: list[StructuredEvent] = []
    anna.follow("bob", seen.append)
    eventually(lambda: any(each.domain == "heat" and each.type == "Monitoring" for each in seen))
    bob.set("heat", "alpha", 0.45)
    eventually(lambda: any(each.name == "set" and each.body["value"] == 0.45 for each in seen))
    assert not any(each.domain == "flow" for each in seen)
    # and of what he watches later
    watched = bob.watch("flow", "", _nobody)
    eventually(lambda: any(each.domain == "flow" for each in seen))
    # and no more of what he does not any more
    bob.unwatch(watched)
    eventually(lambda: [each.domain for each in seen[-6:]] == ["heat"] * 6)  # they come in turns else
    anna.unfollow("bob")
    with pytest.raises(UnknownUidError):
        anna.unfollow("bob")


def test_profile_with_a_constraint_that_is_none_stops_no_following(
    domain: Callable[[], Domain], eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a client of whom another program says that it watches what makes no sense
    here = domain()
    names = [f"flow{number}" for number in range(8)]
    bob, seen = here.client("bob"), set[str]()
    here.services.offer(client.PROFILE, {"client": "bob", "application": "heat", "constraint": "alpha >"})
    for name in names:
        bob.watch(name, "", _nobody)
    # When somebody follows it, expect all that makes sense, and to be told once of the rest
    here.client("anna").follow("bob", lambda event: seen.add(event.domain))
    (followed,) = here._members[1]._followed.values()  # type: ignore[attr-defined]  # anna
    eventually(lambda: len(followed._kept) == 9)
    for name in names:
        here.publish(StructuredEvent(name, "Monitoring"), MONITORING)
    eventually(lambda: seen == set(names))
    followed._keep_up()
    assert caplog.text.count("is not followed") == 1


@pytest.mark.parametrize("ended", ["leave", "unwatch", "unfollow"])
def test_listener_on_channels_that_overlap_may_end_them(
    domain: Callable[[], Domain], eventually: Callable[..., Any], ended: str
) -> None:
    # Given a listener that has its client leave, or end what it watches or follows, while it is called over others
    here, told, took = domain(), list[str](), list[float]()
    anna = here.client("anna")

    def listener(event: StructuredEvent) -> None:
        told.append(event.name)
        if event.name == "40":
            eventually(lambda: len(anna._queue(listener)._changed._waiters) >= 2)  # type: ignore[attr-defined]
            began = time.monotonic()
            if ended == "leave":
                anna.leave()
            elif ended == "unfollow":
                anna.unfollow("anna")
            else:
                for each in watched:
                    anna.unwatch(each)
            took.append(time.monotonic() - began)

    watched = [anna.watch("heat", f"v > {number}", listener) for number in range(3)]
    anna.follow("anna", listener)
    (followed,) = anna._followed.values()
    eventually(lambda: len(followed._kept) == 4)
    # When it does so, expect that to wait for none of its other calls
    for number in range(60):
        here.publish(StructuredEvent("heat", "Monitoring", str(number), {"v": 5}), MONITORING)
    eventually(lambda: took)
    assert took[0] < 4.0
    assert len(told) == len(set(told))


def test_who_follows_sees_what_nobody_tells_of(
    domain: Callable[[], Domain], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a client who follows another one, of whose offers nothing is told here, as those of other domains
    monkeypatch.setattr(client, "AGAIN_SECONDS", 0.1)
    here, there = domain(), domain()
    _heat(here)
    bob = here.client("bob")
    monkeypatch.setattr(there.services, "watch", lambda changed: lambda: None)  # noqa: ARG005  # never
    seen: list[StructuredEvent] = []
    there.client("anna").follow("bob", seen.append)
    # When he watches something later on, expect its events
    bob.watch("heat", "", _nobody)
    eventually(lambda: seen)


def test_who_waits_for_commands_and_talk_warns_of_nothing(
    domain: Callable[[], Domain], caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    # Given a domain in which something is published; when a client waits for what nobody publishes
    here = domain()
    told: list[StructuredEvent] = []
    _heat(here)
    here.client("anna").watch("heat", "", told.append)
    eventually(lambda: told)
    domain().client("bob")
    # Expect no warning
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_what_is_closed_makes_nothing_more(federation: Federation) -> None:
    federation.pad()
    with Domain(federation.config) as domain:
        heat, anna = _heat(domain), domain.client("anna")
        anna.watch("heat", "", _nobody)
        anna.follow("bob", _nobody)
        heat.close()
        heat.close()
        anna.leave()
        anna.leave()
        domain.client("bob")
    with pytest.raises(AdapterStateError, match="closed"):
        domain.client("anna")


@pytest.mark.row("D-24")
def test_client_that_was_away_gets_what_it_watches_in_order_and_once(
    federation: Federation, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a domain with an archive that keeps events, and a client who watches durably
    rules = tmp_path / "policy.toml"
    rules.write_text('[[keep]]\ntype = "discover.*"\n')
    archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0)
    policy = PolicySection(file=str(rules))
    federation.pad(config=msgspec.structs.replace(federation.config, archive=archive, policy=policy))
    steps: list[Any] = []
    with Domain(federation.config) as here:

        def publish(*numbers: int) -> None:
            for number in numbers:
                here.publish(StructuredEvent("heat", "Monitoring", "", {"step": number}), MONITORING)

        with Domain(federation.config) as elsewhere:
            elsewhere.client("anna").watch("heat", "step > 0", lambda e: steps.append(e.body["step"]), durable=True)
            publish(1, 2, 0, 3)
            eventually(lambda: steps == [1, 2, 3])
        # When she is away while it goes on, and comes back
        publish(4, 0, 5)
        with Domain(federation.config) as elsewhere:
            elsewhere.client("anna").watch("heat", "step > 0", lambda e: steps.append(e.body["step"]), durable=True)
            publish(6)
            # Expect all of it
            eventually(lambda: len(steps) >= 6)
            assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.row("D-34")
def test_listener_on_channels_that_overlap_is_told_each_event_once(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given a client with one listener for what it watches twice, and for what another one watches whom it follows; and
    # another listener for some of it
    here = domain()
    anna, bob = here.client("anna"), here.client("bob")
    all_of_it: list[Any] = []
    apart: list[Any] = []

    def listener(event: StructuredEvent) -> None:
        all_of_it.append(event.body["step"])

    bob.watch("heat", "step > 7", _nobody)
    anna.watch("heat", "step > 3", listener)
    second = anna.watch("heat", "step < 8", listener)
    anna.watch("heat", "step > 3", lambda event: apart.append(event.body["step"]))
    anna.follow("bob", listener)
    (followed,) = anna._followed.values()
    eventually(lambda: len(followed._kept) == 2)
    # When events come over one, two and three of these channels
    for step in range(1, 11):
        here.publish(StructuredEvent("heat", "Monitoring", "running", {"step": step}), MONITORING)
    eventually(lambda: len(all_of_it) >= 10 and len(apart) >= 7)
    # Expect each once for each listener, in both when it has but one channel less
    anna.unwatch(second)
    here.publish(StructuredEvent("heat", "Monitoring", "running", {"step": 11}), MONITORING)
    eventually(lambda: 11 in all_of_it and 11 in apart)
    assert sorted(all_of_it) == list(range(1, 12))
    assert apart == list(range(4, 12))


@pytest.mark.row("D-34")
def test_what_a_listener_failed_on_comes_again_and_what_it_has_had_does_not() -> None:
    # Given a listener that fails once
    told: list[str] = []
    consumed: list[str] = []
    failures = [ValueError("busy")]

    def listener(event: StructuredEvent) -> None:
        if failures:
            raise failures.pop()
        told.append(event.name)

    def arrives(number: int) -> InfoObject:
        metadata = StructuredEvent("heat", "Monitoring", str(number)).metadata()
        return pack(Head("", "registration-a", number, 1.0, MONITORING, "1.0", metadata, 0), b"").unpacked()

    queue = ListenerQueue(listener)
    one, two = (
        ListenerChannel(queue, lambda obj, of=of: consumed.append(f"{of}{obj.platform.sequence}")) for of in "ab"
    )
    with pytest.raises(ValueError, match="busy"):
        one.arrived(arrives(1))
    # When the same comes by several channels, expect it told once, over the one by which it came first
    for channel, number in ((one, 1), (two, 1), (two, 2), (one, 1), (one, 2)):
        channel.arrived(arrives(number))
    assert (told, consumed) == (["1", "2"], ["a1", "b2"])


@pytest.mark.row("D-49")
def test_application_is_offered_as_its_domain_s_channel_which_may_change(
    federation: Federation, eventually: Callable[..., Any]
) -> None:
    # Given an application; when a client finds it
    first = federation.pad()
    with Domain(federation.config) as here:
        _heat(here)
        anna = here.client("anna")
        (found,) = anna.find("name == 'heat'")
        # Expect it to refer to the delegate by which its events go, as lookup services have that
        (listed,) = here.services._own.community.lookup(ServiceTemplate(types=(PAD_TYPE,)), timeout=20.0)
        assert found.reference == listed.proxy
        assert found.reference.endpoints == (first.address,)
        # Expect nobody to offer one that refers to something else
        with pytest.raises(EntryError, match="refers to 'offer'"):
            here.services.offer(APPLICATION, {"domain": 1, "name": "none"})
        # When another delegate takes over, expect it to refer to that
        second = federation.pad("bravo", "paris")
        first.stop()
        eventually(lambda: anna.find("name == 'heat'")[0].reference.endpoints == (second.address,))


@pytest.mark.row("D-28")
def test_event_of_a_higher_priority_overtakes_others_of_its_application(
    federation: Federation, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate where the most important goes first, and a subscriber who has as many as it may have at a time
    file = tmp_path / "policy.toml"
    file.write_text('[space]\nstrategy = "strict"\n')
    qos = msgspec.structs.replace(federation.config.qos, mode="on")
    federation.config = msgspec.structs.replace(federation.config, qos=qos, policy=PolicySection(file=str(file)))
    pad = federation.pad()
    with Domain(federation.config) as here:
        subscriber = federation.subscriber()
        uid = subscriber.register_subscriber(type_name=MONITORING, bound=10)

        def say(count: int, priority: int) -> None:
            before = pad.status()["published"]
            for _ in range(count):
                event = StructuredEvent("heat", "Monitoring", str(priority), {}, {"priority": priority})
                here.publish(event, MONITORING)
            eventually(lambda: pad.status()["published"] == before + count)

        say(10, 1)
        eventually(lambda: subscriber.queue_size(uid) == 10)
        # When more wait at the delegate, the most important last
        say(3, 1)
        say(3, 2)
        say(3, 3)
        # Expect these first
        came = [subscriber.receive(uid, 60.0) for _ in range(19)]
    names = [StructuredEvent.read(obj.metadata).name for obj in came if obj]
    assert names == ["1"] * 10 + ["3"] * 3 + ["2"] * 3 + ["1"] * 3
