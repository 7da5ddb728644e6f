"""A bridge's platform tells what its subscribers want of the other side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.plain import PlainPlatform
from jbi_pubsub.bridge.platform import BridgedRegistration, JbiPlatform
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import PolicySection
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted, WantedPredicate, WantedType
from tests.bridge.conftest import ALPHA, Place

TYPE = TypeName("mil.af.rl.jbi.Intel_Imagery")
UID = "registration-00112233445566778899aabbccddeeff"
POLICY = """
[[access]]
action = ["connect", "publish", "subscribe", "peer", "status"]
"""


class Ear:
    """A listener."""

    def arrived(self, obj: Any) -> None: ...

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0) -> None: ...

    def waiting(self, uid: str) -> int:  # noqa: ARG002  # the protocol's
        return 0


@pytest.fixture
def side(place: Callable[..., Place]) -> Iterator[Callable[..., tuple[Place, JbiPlatform, list[Wanted]]]]:
    """side() is a platform, a bridge's side there, and what was told of its interest."""
    sides: list[JbiPlatform] = []

    def made(policy: Path | None = None) -> tuple[Place, JbiPlatform, list[Wanted]]:
        here, at = place(), ALPHA
        if policy is not None:
            at = ("strict", "rome")
            config = msgspec.structs.replace(here.federation.config, policy=PolicySection(file=str(policy)))
            here.federation.pad(*at, config)
        side = JbiPlatform("here", here.federation.config, at, "b-0001")
        sides.append(side)
        told: list[Wanted] = []
        side.wanted(told.append)
        return here, side, told

    yield made
    for each in sides:
        each.close()


def test_a_platform_tells_what_its_subscribers_want_of_what_is_relayed(
    side: Callable[..., Any], figures: Any, bundle: SchemaBundle, eventually: Any
) -> None:
    # Given a bridge's side that has itself subscribed to all, and relays a registration there
    here, platform, told = side()
    platform.subscribe((), Ear())
    entries = TypeRepository().open_schema(bundle).entries(parse_metadata(figures.figure_1))
    platform.register(BridgedRegistration(UID, TYPE, entries), TYPE, bundle, ("far",), validate=True)
    eventually(lambda: told and told[-1].types == (), what=lambda: told)
    # When a subscriber comes, expect what it wants told
    adapter, uid = here.subscriber(type_name="Intel_Imagery", predicate="//lat > 33")
    wanted = (WantedType(TYPE, (WantedPredicate("//lat > 33"),)),)
    eventually(lambda: told[-1].types == wanted, what=lambda: told)
    # When another delegate takes over, expect what is wanted there told
    here.pad.stop(0.0)
    here.federation.pad(*ALPHA)
    before = told[-1].revision
    eventually(lambda: told[-1].types == wanted and told[-1].revision > before, what=lambda: told)
    # When it leaves, expect that nothing is wanted
    adapter.cancel_subscription(uid)
    eventually(lambda: told[-1].types == (), what=lambda: told)


def test_where_it_is_not_told_everything_is_wanted(side: Callable[..., Any], tmp_path: Path, eventually: Any) -> None:
    # Given a delegate whose rules let nobody relay
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    _, _, told = side(file)
    # Expect everything, and that said once
    eventually(lambda: told == [EVERYTHING], what=lambda: told)
    # Given a platform that can't be asked; Expect the same
    told.clear()
    PlainPlatform("kind", "there", "b", tmp_path).wanted(told.append)
    assert told == [EVERYTHING]
