"""Applications and clients of two domains, with a bridge between that brings what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Domain, StructuredEvent
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Rule, Transformation
from jbi_pubsub.core.config import Config, DomainSection
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import ObjectAttributes
from jbi_pubsub.domains.event import MONITORING
from jbi_pubsub.testing import LocalFederation

ZONES = Rule(("discover.*",), where="not(qos/zone)")


@pytest.fixture
def linked() -> Iterator[Callable[..., tuple[Domain, Domain]]]:
    """Two domains, each with a channel of its own, and a bridge with these rules."""
    with ExitStack() as stack:

        def made(*rules: Rule) -> tuple[Domain, Domain]:
            configs: list[Config] = []
            for number, name in ((1, "one"), (2, "two")):
                federation = stack.enter_context(LocalFederation())
                federation.delegate(name, "x")
                section = DomainSection(number=number)
                configs.append(msgspec.structs.replace(federation.config, domain=section))
            sides = [
                JbiPlatform(name, config, (name, "x"), "one-two")
                for name, config in zip(("one", "two"), configs, strict=True)
            ]
            terms = DirectionTerms(poll=0.2, wanted=True)
            ways = [
                Direction(*ends, Transformation(("*",), (), rules), bridge="one-two", terms=terms)
                for ends in ((sides[0], sides[1]), (sides[1], sides[0]))
            ]
            mirror = Mirror((sides[0], sides[1]), (ways[0], ways[1]))
            mirror.start()
            stack.callback(mirror.close)
            one, two = (stack.enter_context(Domain(config)) for config in configs)
            return one, two

        yield made


@pytest.mark.row("D-03")
def test_application_of_one_domain_is_watched_and_steered_from_another_one(
    linked: Callable[..., tuple[Domain, Domain]], eventually: Callable[..., Any]
) -> None:
    # Given an application here, and a client there who watches it
    one, two = linked()
    alpha = [0.5]
    heat = one.application("heat", lambda: {"alpha": alpha[0]}, period=0.1)
    heat.steer("alpha", set=lambda value: alpha.__setitem__(0, value), get=lambda: alpha[0])  # type: ignore[call-overload]
    anna, bob = two.client("anna"), one.client("bob", lambda event: heard.append(event))
    heard: list[StructuredEvent] = []
    seen: list[StructuredEvent] = []
    anna.watch("heat", "alpha < 0.3", seen.append)
    # When she sets a parameter, expect the answer, and what she watches then
    anna.set("heat", "alpha", 0.25, timeout=30.0)
    eventually(lambda: len(seen) >= 3)
    assert {each.body["alpha"] for each in seen} == {0.25}
    assert anna.get("heat", "alpha", timeout=30.0) == 0.25
    # and that they talk to each other
    anna.talk("bob", "it cools")
    eventually(lambda: [each.body["text"] for each in heard] == ["it cools"])
    assert bob.name == "bob"


@pytest.mark.row("D-66")
def test_event_of_a_zone_stays_in_its_domain_whatever_others_want(
    linked: Callable[..., tuple[Domain, Domain]], eventually: Callable[..., Any]
) -> None:
    # Given clients in both domains who watch the same
    one, two = linked(ZONES)
    seen: dict[str, list[Any]] = {"here": [], "there": []}
    for domain, name in ((one, "here"), (two, "there")):
        domain.client(name).watch("heat", "step > 0", lambda event, of=seen[name]: of.append(event.body["step"]))
    # When each second event is of a zone
    for step in range(1, 21):
        qos = {"zone": "lab"} if step % 2 else {}
        one.publish(StructuredEvent("heat", "Monitoring", "running", {"step": step}, qos), MONITORING)
    # Expect all of them here, and there those that are of none
    eventually(lambda: len(seen["here"]) == 20 and len(seen["there"]) >= 10, what=lambda: seen)
    assert (sorted(seen["here"]), sorted(seen["there"])) == (list(range(1, 21)), list(range(2, 21, 2)))


@pytest.mark.row("D-39")
@pytest.mark.processes
def test_what_an_event_says_of_its_service_travels_with_it(linked: Callable[..., tuple[Domain, Domain]]) -> None:
    # Given somebody in another domain who sees the objects that events are
    one, two = linked()
    there = two._subscriber.register_subscriber(type_name=MONITORING)
    said: list[dict[str, Any]] = [
        {},
        {"priority": 2, "timeout": 60, "reliable": False, "importance": "high"},
        {"priority": 1},
        {"priority": 1},
    ]
    # When events of one application say each something else of their service
    for qos in said:
        one.publish(StructuredEvent("heat", "Monitoring", "running", {}, qos), MONITORING)
    # Expect it there, of each; and those of one priority in their order
    came = [two._subscriber.receive(there, 30.0) for _ in said]
    objects = {(obj.platform.attributes, obj.platform.sequence) for obj in came if obj}
    first = ObjectAttributes(2, 60.0, reliable=False)
    assert objects == {(None, 1), (first, 1), (ObjectAttributes(1), 1), (ObjectAttributes(1), 2)}
    # Expect what makes no sense to be refused where it is said
    for wrong in (
        {"priority": 6}, {"priority": 0}, {"priority": "high"}, {"timeout": -1}, {"timeout": 0}, {"timeout": 0.0},
        {"timeout": True}, {"reliable": 1},
    ):  # fmt: skip
        with pytest.raises(MetadataError, match="qos"):
            one.publish(StructuredEvent("heat", "Monitoring", "running", {}, wrong), MONITORING)
