"""Topologies of the Gemini report as files of the emulator: on each of them all nodes hear all messages, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jbi_pubsub.core import guard
from jbi_pubsub.network import topology
from jbi_pubsub.network.emulator import NetworkEmulator

from .emulated import FOLDER, nodes, own

MESSAGES = 20


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    assert guard.faults() == {}


@pytest.mark.row("G-39", "G-92", "G-93", "G-120")
@pytest.mark.parametrize(
    ("figure", "speakers"),
    [
        ("figure08", ("alpha", "bravo")),
        ("figure10", ("left-1", "right-2")),
        ("figure11", ("gemini-2", "gemini-4")),
        ("figure12", ("d-1", "f")),
        ("figure15", ("ethernet-1", "wireless-2")),
        ("figure16", ("a-1", "b-2")),
    ],
)
def test_all_hear_all_once_on_the_figures_of_the_report(
    figure: str, speakers: tuple[str, str], eventually: Callable[..., Any]
) -> None:
    # Given a topology, with nodes on it that hear each other
    found = own((FOLDER / f"{figure}.toml").read_text())
    with NetworkEmulator(found) as running, nodes(found) as all_:
        eventually(lambda: all(each.network.peers() for each in all_.values()))
        # When one at each end says messages of two blocks
        said = {
            name: [b"%s %d" % (name.encode(), number) + bytes(2_000) for number in range(MESSAGES)] for name in speakers
        }
        for name in speakers:
            for body in said[name]:
                all_[name].say(body)
        # Expect all of them at all others, and none twice
        wanted = {name: sorted(body for by in speakers if by != name for body in said[by]) for name in all_}

        def lacking() -> dict[str, int]:
            return {name: len(wanted[name]) - len(each.heard) for name, each in all_.items()}

        eventually(lambda: max(lacking().values()) <= 0, what=lambda: (lacking(), running.status()))
        assert {name: sorted(each.body for each in node.heard) for name, node in all_.items()} == wanted
        lossy = {name for name, segment in found.segment.items() if segment.loss}
        assert all(running.status()["segments"][name]["lost"] for name in lossy)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_each_file_can_be_read_as_it_stands(file: Any) -> None:
    assert topology.rows(topology.read(file))
