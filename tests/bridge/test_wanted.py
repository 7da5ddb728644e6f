"""Directions that bring only what is wanted: one subscription at the source for all of the other side's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.bridge import wanted as module
from jbi_pubsub.bridge.file import read
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Rule, Transformation
from tests.bridge.conftest import ALPHA, BRAVO, Place, taken

NAME = "mil.af.rl.jbi.Intel_Imagery"


class Link:
    """A bridge with one direction, from one place to another."""

    def __init__(self, source: tuple[str, Place], target: tuple[str, Place], rules: tuple[Rule, ...] = ()) -> None:
        bridge = f"{source[0]}-{target[0]}"
        self.source = source[1]
        sides = [JbiPlatform(name, place.federation.config, place.delegate, bridge) for name, place in (source, target)]
        terms = DirectionTerms(poll=0.2, wanted=True)
        self.way = Direction(sides[0], sides[1], Transformation(("*",), (), rules), bridge=bridge, terms=terms)
        self.mirror = Mirror((sides[0], sides[1]), (self.way,))
        self.mirror.start()

    @property
    def status(self) -> dict[str, Any]:
        return self.way.status()

    @property
    def wanted(self) -> dict[str, Any]:
        """By type what is wanted, as the direction says."""
        return {name: each for name, each in self.status["wanted"].items() if each["subscribed"] is not None}

    def behind(self) -> dict[str, int]:
        """How many subscriptions stand behind each predicate."""
        return {e["predicate"]: e["behind"] for each in self.wanted.values() for e in each["members"] if e["behind"]}

    def there(self) -> list[str]:
        """Predicates that the source's delegate has for the link."""
        return [each["predicate"] for each in self.source.pad.status()["subscriptions"] if each.get("unlike")]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.3)


@pytest.fixture
def two(place: Callable[..., Place]) -> tuple[Place, Place]:
    return place(ALPHA), place(BRAVO)


@pytest.fixture
def link(two: tuple[Place, Place]) -> Iterator[Callable[..., Link]]:
    with ExitStack() as stack:

        def made(*rules: Rule, ends: tuple[tuple[str, Place], tuple[str, Place]] | None = None) -> Link:
            one = Link(*(ends or (("alpha", two[0]), ("bravo", two[1]))), rules)
            stack.callback(one.mirror.close)
            return one

        yield made


def publish(adapter: Any, uid: Any, figures: Any, *lats: int) -> list[str]:
    ids = [adapter.publish(uid, figures.metadata(lat=str(lat)), b"x") for lat in lats]
    adapter.flush()
    return ids


def template(figures: Any, publisher: str) -> bytes:
    """Figure 3, of that publisher."""
    return re.sub(rb"<publisher>.*?</publisher>", b"<publisher>%s</publisher>" % publisher.encode(), figures.figure_3)


@pytest.mark.row("D-10", "D-11", "D-12", "D-13")
def test_fifty_equal_subscribers_are_one_there(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given a publisher over there, and nobody who wants anything of it
    alpha, bravo = two
    publisher = alpha.publisher()
    made = link()
    eventually(lambda: made.status["registrations"] == 1, what=lambda: made.status)
    # When it publishes; Expect no subscription there, and nothing that crosses
    publish(*publisher, figures, *range(10))
    assert (made.there(), made.status["relayed"], made.status["lost"]) == ([], 0, 0)
    # When fifty come who want the same
    adapters = [bravo.subscriber(type_name=NAME, predicate="//lat > 33") for _ in range(5)]
    uids = [uid for _, uid in adapters]
    uids = [
        (adapter, adapter.register_subscriber(type_name=NAME, predicate="//lat > 33"))
        for adapter, _ in adapters
        for _ in range(9)
    ] + list(adapters)
    eventually(lambda: made.behind() == {"//lat > 33": 50}, what=lambda: made.status)
    # Expect one subscription there, and one copy of each object that one of them wants
    assert made.there() == ["//lat > 33"]
    ids = publish(*publisher, figures, *range(30, 40))
    for adapter, uid in uids:
        assert [obj.object_id for obj in taken(adapter, uid, 6)[:6]] == ids[4:]
        assert adapter.losses(uid) == {}
    assert made.status["relayed"] == 6
    # When all leave; Expect no subscription there any more
    for adapter, uid in uids:
        adapter.cancel_subscription(uid)
    eventually(lambda: made.there() == [], what=made.there)


@pytest.mark.row("D-16", "D-17", "D-18")
def test_what_is_covered_costs_nothing_there_and_the_last_one_to_leave_narrows(
    two: tuple[Place, Place], link: Any, eventually: Any
) -> None:
    # Given somebody who wants some of a type, and somebody who wants all of it
    alpha, bravo = two
    alpha.publisher()
    made = link()
    bravo.subscriber(type_name=NAME, predicate="//lat > 33")
    adapter, everything = bravo.subscriber(type_name=NAME)
    eventually(lambda: made.there() == [""] and made.behind()[""] == 2, what=lambda: made.status)
    amended: list[str] = []
    real = alpha.pad.delegate.subscribers._amendments.amend

    def amend(*args: Any) -> Any:
        amended.append(args[2].request.predicate)
        return real(*args)

    alpha.pad.delegate.subscribers._amendments.amend = amend  # type: ignore[method-assign]
    # When others come, who want what comes already; Expect that nothing is asked of the other side
    others = [adapter.register_subscriber(type_name=NAME, predicate=f"//lat > {number}") for number in range(5)]
    eventually(lambda: made.behind()[""] == 7, what=lambda: made.status)
    for uid in others[1:]:
        adapter.cancel_subscription(uid)
    eventually(lambda: made.behind()[""] == 3, what=lambda: made.status)
    assert (amended, made.there()) == ([], [""])
    # When the one that wants all leaves; Expect what the others want, by one amendment
    adapter.cancel_subscription(everything)
    both = "(//lat > 0) or (//lat > 33)"
    eventually(lambda: made.there() == [both], what=made.there)
    assert amended == [both]


def test_who_has_waited_gets_first_objects_whether_his_type_is_wanted_by_others_or_not(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given two subscriptions to what nobody publishes yet, by its invariants, one with a predicate
    alpha, bravo = two
    made = link()
    eventually(lambda: made.status["listening"], what=lambda: made.status)
    first, second = (
        bravo.subscriber(template=template(figures, name), schema=figures.schema, predicate=f"//lat > {least}")
        for name, least in (("a", 3), ("b", 6))
    )
    adapter = alpha.federation.light()
    at = adapter.connect_to_delegate(*alpha.delegate)
    for name, subscriber, least in (("a", first, 4), ("b", second, 7)):
        # When somebody comes who publishes that, and does so at once
        uid = adapter.register_publisher(at, figures.schema, figures.metadata(publisher=name))
        ids = [adapter.publish(uid, figures.metadata(publisher=name, lat=str(lat)), b"") for lat in range(12)]
        # Expect all of it that is wanted, in order
        got = [obj.object_id for obj in taken(*subscriber, 12 - least)]
        assert got == ids[least:]
    eventually(lambda: len(made.there()) == 1 and " or " in made.there()[0], what=made.there)
    for adapter_, uid_ in (first, second):
        assert adapter_.losses(uid_) == {}


@pytest.mark.row("D-14")
def test_of_disjoint_profiles_as_many_copies_cross_as_there_are_receivers(
    two: tuple[Place, Place], link: Any, figures: Any, eventually: Any
) -> None:
    # Given three who want nothing in common
    alpha, bravo = two
    publisher = alpha.publisher()
    made = link()
    parts = [f"//lat >= {10 * part} and //lat < {10 * part + 10}" for part in range(3)]
    there = [bravo.subscriber(type_name=NAME, predicate=part) for part in parts]
    eventually(lambda: len(made.behind()) == 3 and len(made.there()) == 1, what=lambda: made.status)
    eventually(lambda: made.there()[0].count(" or ") == 2, what=made.there)
    # When objects for each are published; Expect each once, and nothing else
    ids = publish(*publisher, figures, *range(40))
    for part, subscriber in enumerate(there):
        assert [obj.object_id for obj in taken(*subscriber, 10)] == ids[10 * part : 10 * part + 10]
    assert made.status["relayed"] == 30


def test_the_file_of_a_bridge_says_that_what_is_wanted_comes_alone(tmp_path: Path) -> None:
    # Given such a file; Expect the direction to say so
    file = tmp_path / "bridge.toml"
    file.write_text('[side.a]\n[side.b]\n[[direction]]\nfrom = "a"\nto = "b"\nwanted = true\n')
    (way,) = read(file).ways
    assert way.wanted
