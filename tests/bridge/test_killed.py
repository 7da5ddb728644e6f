"""A bridge that dies: the one beside it comes in, with what the dead one may not have sent."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.subscription import origin_of
from tests.bridge.conftest import ALPHA, BRAVO, Place, taken


def test_when_a_bridge_is_killed_the_other_one_brings_everything_once(
    place: Callable[..., Place], start: Callable[..., Any], figures: Any, tmp_path: Path, eventually: Any
) -> None:
    # Given two bridges, processes of their own, side by side
    alpha, bravo = place(ALPHA), place(BRAVO)
    sides = [
        f'[side.{name}]\nlocators = ["{at.federation.lookups[0].address}"]\ndelegate = {list(at.delegate)}\n'
        for name, at in (("alpha", alpha), ("bravo", bravo))
    ]
    bridges = {}
    for name in ("one", "two"):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'name = "{name}"\npoll = 0.2\n' + "".join(sides))
        bridges[name] = start("--set", "lease.publisher=2", "--set", "lease.lookup=2", "bridge", str(file), "--json")
    for process in bridges.values():
        assert process.fact()["ready"] == "bridge"
    adapter, subscription = bravo.subscriber(type_name="Intel_Imagery")
    publisher, uid = alpha.publisher()
    assert publisher.wait_for_subscribers(uid, 2) == 2  # the bridges'

    def publish(count: int) -> list[str]:
        ids = [publisher.publish(uid, figures.figure_1, b"p") for _ in range(count)]
        publisher.flush()
        return ids

    ids = publish(20)
    assert [obj.object_id for obj in taken(adapter, subscription, 20)] == ids
    # When the one that relays is killed, and more is published before anybody can know
    (item,) = bravo.pad.community.lookup(ServiceTemplate(service_id=uid))
    origin = origin_of(item.entries)
    assert origin is not None
    bridges[origin.bridge.rpartition("-")[0]].signal(signal.SIGKILL)
    more = publish(20)
    # Expect the other one to bring it, each object once, and nothing lost
    assert [obj.object_id for obj in taken(adapter, subscription, 20, 30.0)] == more
    assert adapter.losses(subscription) == {}
