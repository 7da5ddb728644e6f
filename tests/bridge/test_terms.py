"""Wishes of a publisher are told to other platforms, and hold there where a bridge is asked to pass them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Sending, Wish
from jbi_pubsub.bridge.file import read
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms
from jbi_pubsub.bridge.platform import BridgedRegistration, JbiPlatform
from jbi_pubsub.bridge.transformation import Transformation
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.core.errors import ConfigurationError, EntryError, PredicateError
from jbi_pubsub.core.info_object import InfoObject, Platform, SchemaBundle, TypeName, object_id_of
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.protocol.entries import SendingEntry
from jbi_pubsub.protocol.sending import SENDING, sending_terms
from tests.bridge.conftest import ALPHA, Place
from tests.bridge.test_direction import TYPE, UID, Side

IMAGERY = TypeName("mil.af.rl.jbi.Intel_Imagery")
DURABLE = Sending("durable", "//platform")


@pytest.fixture
def side(place: Callable[..., Place], federation: Any) -> Callable[..., JbiPlatform]:
    """side(place) is a bridge's side there."""

    def made(here: Place, at: tuple[str, str] = ALPHA) -> JbiPlatform:
        platform = JbiPlatform("here", here.federation.config, at, "b-0001")
        here.federation.stack.callback(platform.close)
        return platform

    return made


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, (SENDING, None, False)),
        ({"reliable": False}, (Sending("unreliable"), None, False)),
        ({"reliable": False, "sending": DURABLE}, (DURABLE, None, False)),
        ({"persist": False, "qos": Wish(importance=5)}, (SENDING, 5, False)),
    ],
)
def test_a_bridge_is_told_what_a_publisher_wishes(
    side: Callable[..., JbiPlatform], place: Callable[..., Place], eventually: Any, options: Any, told: Any
) -> None:
    # Given a publisher with wishes
    here = place()
    here.publisher(**options)
    # When a bridge looks what is published there
    platform = side(here)
    (found,) = eventually(platform.published)
    # Expect them, and no entry of theirs among those that subscriptions ask for
    assert (found.sending, found.importance, found.is_persistent) == told
    assert not any(rep.cls.name == SendingEntry.entry_name for rep in found.entries)


@pytest.mark.parametrize("passes", [(), ("persist",), ("importance",)])
def test_a_direction_says_which_wishes_hold_on_the_other_side(passes: Any) -> None:
    # Given a registration with wishes, and a direction
    class Other(Side):
        def register(self, published: BridgedRegistration, *_: Any, **__: Any) -> None:
            self.came = published

    target = Other("bravo")
    published = BridgedRegistration(UID, TYPE, sending=DURABLE, is_persistent=True, importance=5)
    way = Direction(
        Side("alpha", published), target, Transformation(("*",), (), ()),  # type: ignore[arg-type]  # stubs
        bridge="b", terms=DirectionTerms(passes=passes),
    )  # fmt: skip
    # When it is registered on the other side; Expect all of them told, and which of them hold
    way.look()
    assert target.came == dataclasses.replace(published, passes=passes)


def test_the_file_of_a_bridge_says_which_wishes_pass(tmp_path: Path) -> None:
    # Given a file that asks for both, and one that asks for what there is not
    file = tmp_path / "bridge.toml"
    text = '[side.a]\n[side.b]\n[[direction]]\nfrom = "a"\nto = "b"\npasses = {}\n'
    file.write_text(text.format('["persist", "importance"]'))
    assert read(file).ways[0].passes == ("persist", "importance")
    file.write_text(text.format('["deadline"]'))
    # Expect a refusal
    with pytest.raises(ConfigurationError, match="passes"):
        read(file)


def test_what_is_relayed_is_archived_from_when_that_is_asked_for(
    side: Callable[..., JbiPlatform],
    place: Callable[..., Place],
    figures: Any,
    bundle: SchemaBundle,
    tmp_path: Path,
    eventually: Any,
) -> None:
    # Given a delegate with an archive, and a registration that a bridge relays to it
    here, at = place(), ("kept", "rome")
    archive = ArchiveSection(folder=str(tmp_path / "archive"), workers=0)
    here.federation.pad(*at, msgspec.structs.replace(here.federation.config, archive=archive))
    platform = side(here, at)
    entries = TypeRepository().open_schema(bundle).entries(parse_metadata(figures.figure_1))
    published = BridgedRegistration(UID, IMAGERY, entries, first=1, importance=4, is_persistent=True)

    def relay(number: int) -> None:
        metadata = figures.metadata()
        told = Platform(1e9 + number, UID, number, len(metadata), 0)
        platform.publish(UID, InfoObject(object_id_of(UID, number), IMAGERY, metadata, b"", told), "far", 10.0)
        eventually(lambda: platform.unfinished(UID) == 0)

    def register(one: BridgedRegistration) -> None:
        platform.register(one, IMAGERY, bundle, ("far",), validate=True)

    register(published)
    relay(1)
    (found,) = eventually(platform.published)
    assert (found.importance, found.is_persistent) == (None, False)
    # When it is asked to keep it, and how important it is, while it stands there
    register(dataclasses.replace(published, first=2, passes=("persist", "importance")))
    relay(2)
    # Expect what came from then on archived, and that told to further bridges
    asker, _ = here.subscriber(type_name="Intel_Imagery")
    assert [obj.platform.sequence for obj in asker.query(IMAGERY.name)] == [2]
    (found,) = eventually(lambda: [each for each in platform.published() if each.is_persistent])
    assert found.importance == 4
    # When it is not asked any more, expect it kept all the same until it ends
    register(dataclasses.replace(published, first=3))
    relay(3)
    assert [obj.platform.sequence for obj in asker.query(IMAGERY.name)] == [2, 3]


@pytest.mark.parametrize(
    "said",
    [
        {"mode": "sometimes"},
        {"mode": "durable"},
        {"key": "//a"},
        {"mode": "durable", "key": "//a["},
        {"mode": "durable", "key": "//" + "a" * 2_000},
        {"importance": "6"},
        {"importance": "much"},
    ],
)
def test_nonsense_on_an_item_is_an_error_of_ours(said: dict[str, str]) -> None:
    # Given an item that says what makes no sense; Expect an EntryError, for which a bridge leaves it out
    with pytest.raises(EntryError, match="how it is sent"):
        sending_terms((SendingEntry(**said).rep(),))


@pytest.mark.parametrize("sending", [Sending("durable"), Sending("reliable", "//a"), Sending("durable", "//a[")])
def test_a_way_of_sending_that_makes_no_sense_is_refused(place: Callable[..., Place], sending: Sending) -> None:
    # Given a publisher with such a wish; Expect a refusal before anybody is asked
    with pytest.raises((ConfigurationError, PredicateError), match="sending"):
        place().publisher(sending=sending)
