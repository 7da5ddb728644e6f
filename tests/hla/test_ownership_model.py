"""Ownership beside a naive model of the standard, whatever is called: the same is told, refused and answered."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from extent import examples

from jbi_pubsub.hla import exceptions as exc
from tests.oracles.hla_ownership import Ownership, Refused

from .conftest import Rig

SERVICES = {
    "unconditional": "unconditional_attribute_ownership_divestiture",
    "negotiated": "negotiated_attribute_ownership_divestiture",
    "confirm": "confirm_divestiture",
    "if_wanted": "attribute_ownership_divestiture_if_wanted",
    "denied": "attribute_ownership_release_denied",
    "cancel_negotiated": "cancel_negotiated_attribute_ownership_divestiture",
    "acquire": "attribute_ownership_acquisition",
    "if_available": "attribute_ownership_acquisition_if_available",
    "cancel_acquisition": "cancel_attribute_ownership_acquisition",
}


class Both:
    """An aircraft, and the model of who owns it. Attributes count from 0: position, callsign, the privilege."""

    def __init__(self, names: str, published: dict[str, set[int]]) -> None:
        self.rig = Rig(*names)
        self.model = Ownership(names[0], 2, {name: set(wanted) for name, wanted in published.items()})
        self.handles = (self.rig.position, self.rig.callsign, self.rig.model.fom.privilege)
        both = self.handles[:2]
        for name in names:
            wanted = tuple(sorted(self.handles[each] for each in published[name]))
            self.rig.call(name, "publish_object_class_attributes", self.rig.aircraft, wanted)
            if name != names[0]:
                self.rig.call(name, "subscribe_object_class_attributes", self.rig.aircraft, both)
        self.object = self.rig.call(names[0], "register_object_instance", self.rig.aircraft)
        self.rig.forget()

    def call(self, name: str, service: str, wanted: list[int]) -> None:
        """The same of both."""
        attributes = tuple(sorted(self.handles[each] for each in wanted))
        before = self.rig.execution
        if service in ("publish", "unpublish"):
            real: tuple[Any, ...] = (f"{service}_object_class_attributes", self.rig.aircraft, attributes)
        elif service == "resign":
            real = ("resign_federation_execution", "cancel_then_delete_then_divest")
        else:
            real = (SERVICES[service], self.object, attributes)
        expected: Any = None
        refusals: set[str] = set()
        for order in (wanted, wanted[::-1]):  # of several reasons to refuse, any one
            try:
                self.model.check_all(name, service, order)
            except Refused as why:
                refusals.add(str(why))
        if refusals:
            with pytest.raises(exc.RtiError) as refused:
                self.rig.call(name, *real)
            assert type(refused.value).__name__ in refusals, (name, service, wanted, refusals)
            assert self.rig.execution is before
            return
        answer = self.rig.call(name, *real)
        if service == "resign":
            self.model.resign(name)
        elif service in ("publish", "unpublish"):
            getattr(self.model, service)(name, wanted)
        else:
            expected = self.model.call(name, service, wanted)
        if service == "if_wanted":
            assert list(answer) == [self.handles[each] for each in sorted(expected, key=lambda n: self.handles[n])]
        self.compare()

    def compare(self) -> None:
        told: Counter[tuple[str, str, int]] = Counter()
        for name in self.rig.handles:
            for what, _, attributes, *_ in self.rig.heard(name):
                assert len(set(attributes)) == len(attributes)
                told.update((name, what, self.handles.index(each)) for each in attributes)
        wanted = Counter(self.model.told)
        for each in wanted:
            if each[1] == "request_attribute_ownership_release":
                wanted[each] = 1  # who is asked by several at once, all with the same tag, is asked once
        assert told == wanted
        owned, names = self.rig.execution.owned, {handle: name for name, handle in self.rig.handles.items()}
        for which, (owner, divesting, queue) in enumerate(self.model.seen()):
            handle = self.handles[which]
            assert names.get(owned.owner(self.object, handle), "") == owner
            assert (handle in owned.divesting.get(self.object, {})) is divesting
            claims = owned.claims.get(self.object, {}).get(handle, ())
            assert tuple((names[each.federate], each.if_available) for each in claims) == queue


@pytest.mark.row("H-17")
@pytest.mark.parametrize("seed", range(4))
def test_ownership_is_as_the_standard_has_it(seed: int) -> None:
    for each in range(seed * 100, seed * 100 + examples(100)):
        walk(random.Random(each))


def walk(chance: random.Random) -> None:
    # Given some federates that publish some attributes, and an instance of the first
    names = "abcd"[: chance.randint(2, 4)]
    published = {name: set(chance.sample((0, 1), chance.choice((1, 2, 2)))) for name in names}
    both = Both(names, published)
    for _ in range(60):
        # When one of them calls something, rather what it may; Expect what the model says
        name = chance.choice(names)
        wanted = chance.sample((0, 1, 2), chance.choice((1, 1, 2)))
        kind = chance.random()
        if kind < 0.9:
            both.call(name, chance.choice(tuple(SERVICES)), wanted)
        elif kind < 0.94:
            both.call(name, "publish", [each for each in wanted if each != 2] or [0])
        elif kind < 0.99:
            both.call(name, "unpublish", [each for each in wanted if each != 2] or [0])
        elif len(names) > 2 and both.model.attributes[2].owner != name:
            both.call(name, "resign", [])
            names = names.replace(name, "")


def test_who_waits_for_an_attribute_does_not_stop_to_publish_it() -> None:
    # Given one that waits; When it would publish the class no more; Expect to be refused until it has cancelled
    both = Both("ab", {"a": {0, 1}, "b": {0}})
    both.call("b", "acquire", [0])
    with pytest.raises(exc.OwnershipAcquisitionPending):
        both.rig.call("b", "unpublish_object_class", both.rig.aircraft)
    both.call("b", "cancel_acquisition", [0])
    both.call("b", "unpublish", [0])


def test_who_asks_more_firmly_keeps_its_place_and_its_owner_is_asked_once() -> None:
    # Given an owner that divests, and two that wait, the first only while it is available
    both = Both("abc", {"a": {0, 1}, "b": {0}, "c": {0}})
    both.call("a", "negotiated", [0])
    both.call("b", "if_available", [0])
    both.call("c", "acquire", [0])
    # When the first one asks firmly, and the owner changes its mind; Expect both to wait on, in their order
    both.call("b", "acquire", [0])
    both.call("a", "cancel_negotiated", [0])
    assert both.model.attributes[0].queue == [("b", False), ("c", False)]
    both.call("a", "if_wanted", [0, 1])
    assert both.model.attributes[0].owner == "b"


def test_the_privilege_to_delete_passes_as_other_attributes_do() -> None:
    # Given an owner that gives the privilege away; When another one takes it; Expect that to be who may delete
    both = Both("ab", {"a": {0, 1}, "b": {0}})
    both.call("a", "unconditional", [2])
    both.call("b", "acquire", [2])
    with pytest.raises(exc.DeletePrivilegeNotHeld):
        both.rig.call("a", "delete_object_instance", both.object)
    # and when it publishes nothing of the class any more, nobody
    both.call("b", "unpublish", [0])
    with pytest.raises(exc.DeletePrivilegeNotHeld):
        both.rig.call("b", "delete_object_instance", both.object)


def test_an_instance_is_deleted_with_what_was_going_on() -> None:
    # Given one attribute that is divested and another one that is waited for; When the instance is deleted
    both = Both("ab", {"a": {0, 1}, "b": {0, 1}})
    both.call("a", "negotiated", [0])
    both.call("b", "acquire", [0, 1])
    both.rig.forget()
    both.rig.call("a", "delete_object_instance", both.object)
    # Expect nothing of it to be left, and the one who waited to hear of the removal alone
    assert both.rig.heard("b") == [("remove_object_instance", both.object, b"", None, 0)]
    owned = both.rig.execution.owned
    assert not owned.owners
    assert not owned.divesting
    assert not owned.claims
    with pytest.raises(exc.ObjectInstanceNotKnown):
        both.rig.call("a", "confirm_divestiture", both.object, (both.rig.position,))


def test_who_comes_late_is_offered_what_nobody_owns() -> None:
    # Given an instance of which the callsign is nobody's; When a federate publishes it and discovers the instance then
    both = Both("ab", {"a": {0, 1}, "b": {0}})
    both.call("a", "unconditional", [1])
    it = both.rig
    it.join("late")
    it.call("late", "publish_object_class_attributes", it.aircraft, (it.callsign,))
    assert it.heard("late") == []
    it.call("late", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    # Expect it to be told of both, in this order
    assert it.heard("late") == [
        ("discover_object_instance", both.object, it.aircraft, it.execution.instances.by_handle[both.object].name),
        ("request_attribute_ownership_assumption", both.object, (it.callsign,), b""),
    ]
