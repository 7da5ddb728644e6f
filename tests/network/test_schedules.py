"""Networks by chance: whatever comes and goes, no message comes twice, and what was connected long enough has all."""

from __future__ import annotations

import random

import pytest

from jbi_pubsub.network.exchange import ExchangeSettings

from .simulated import Node, Segment, World

SCHEDULES = 40
QUIET = 60.0
"""Seconds after the last event: by then all is there."""


def _schedule(seed: int) -> None:
    """Segments that are connected by nodes, some of which leave, come back and are cut off while messages are said."""
    chance = random.Random(seed)
    world = World(seed)
    segments = [
        Segment(
            world, loss=chance.choice([0.0, 0.02, 0.1, 0.25]), rate=chance.choice([2e4, 1e6, 5e6]),
            delay=chance.choice([0.0005, 0.005, 0.2]), overtaking=chance.choice([0.0, 0.0, 0.01]),
        )
        for _ in range(chance.randint(1, 4))
    ]  # fmt: skip
    settings = ExchangeSettings(
        cache_bytes=chance.choice([20_000, 1 << 20, 1 << 28]), reorder_seconds=0.01, announce_seconds=2.0
    )
    nodes = [Node(world, at + 1, segments[max(0, at - 1) : at + 1], settings) for at in range(len(segments))]
    nodes += [Node(world, 100 + number, [chance.choice(segments)], settings) for number in range(chance.randint(1, 6))]
    said: list[bytes] = []

    def say(node: Node, size: int) -> None:
        body = b"%06d" % len(said) + chance.randbytes(size)
        said.append(body)
        node.say(body, expiration=3_600_000)

    def cut(segment: Segment) -> None:
        segment.is_cut = not segment.is_cut

    at = 3.0
    for _ in range(chance.randint(5, 60)):
        at += chance.expovariate(4.0)
        if chance.random() < 0.85:
            node, size = chance.choice(nodes), chance.choice([10, 1_000, 5_000])
            world.at(at, lambda node=node, size=size: say(node, size))  # type: ignore[misc]
        else:
            segment = chance.choice(segments)
            world.at(at, lambda segment=segment: cut(segment))  # type: ignore[misc]
            world.at(at + chance.uniform(0, 8.0), lambda segment=segment: cut(segment))  # type: ignore[misc]
    world.run(at + 10.0)
    assert not any(segment.is_cut for segment in segments)
    world.run(at + 10.0 + QUIET)
    for node in nodes:
        heard = [message.body for message in node.heard]
        assert len(heard) == len(set(heard)), "a message came twice"
        missing = [body for body in said if body not in set(heard) and body not in node.said]
        if settings.cache_bytes >= 1 << 20:
            assert not missing, f"{len(missing)} of {len(said)} are missing at node {nodes.index(node)}"


@pytest.mark.row("G-05", "G-06", "G-07", "G-84", "G-93")
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_what_was_connected_long_enough_has_all_and_once(seed: int) -> None:
    _schedule(seed)
