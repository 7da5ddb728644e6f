"""Nodes as processes of their own, of which those that keep what another one publishes are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import Config
from tests.network.linked import free_port, new_group

from .test_networks import TYPE

pytestmark = pytest.mark.processes


class NodeProcesses:
    """Processes of nodes on one network of this host."""

    def __init__(self, start: Callable[..., Any], folder: Path, config: Config) -> None:
        self._start, self._folder, self._config = start, folder, config
        self._network = f'[network.lab]\ngroup = "{new_group()}"\nport = {free_port()}\ninterfaces = ["lo"]\n'
        self._running: dict[str, tuple[Any, dict[str, Any]]] = {}

    def start(self, name: str, **node: Any) -> None:
        """One more, with these of [node]."""
        own = {"name": name, "folder": str(self._folder / name), "announce_seconds": 0.2, "node_timeout": 2.0, **node}
        rows = "".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in own.items())
        file = self._folder / f"{name}.toml"
        file.write_text(f"[node]\noffer_seconds = 0.2\n{rows}[archive]\nreserve = 0.0\n{self._network}")
        process = self._start(
            "--config", str(file), "--no-multicast", "--set", "lookup.port=0", "node", "start", "--json"
        )
        self._running[name] = process, process.fact()

    def kill(self, name: str) -> None:
        """No word, no file that is closed."""
        process, fact = self._running.pop(name)
        os.kill(fact["pid"], signal.SIGKILL)
        process.wait(60.0)

    def of(self, name: str) -> Config:
        """Configuration of an application beside it."""
        locators = (self._running[name][1]["lookup"],)
        lookup = msgspec.structs.replace(self._config.lookup, locators=locators, groups=("",))
        return msgspec.structs.replace(self._config, lookup=lookup)

    def kept(self, name: str) -> int:
        """Number of objects in its own archive."""
        with SubscriberAdapter(self.of(name)) as subscriber:
            said = subscriber.explain_query(TYPE)
        return sum(each.objects for address, each in said.items() if address == self._running[name][1]["address"])

    def found(self, name: str) -> set[int]:
        """What a query at a node finds."""
        with SubscriberAdapter(self.of(name)) as subscriber:
            return {int(bytes(each.payload)) for each in subscriber.query(TYPE, timeout=30.0)}


@pytest.mark.row("G-99")
def test_a_volunteer_that_is_killed_while_it_keeps_is_replaced_and_nothing_is_lost(
    start: Callable[..., Any], tmp_path: Path, figures: Any, fixtures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher whose node keeps nothing, and two that keep it
    nodes = NodeProcesses(start, tmp_path, fixtures.test_config())
    nodes.start("alpha", archive=False, persist_elsewhere=True, volunteers=2)
    nodes.start("bravo")
    nodes.start("charlie")
    with PublisherAdapterLight(nodes.of("alpha")) as publisher:
        at = publisher.connect_to_delegate("node", "alpha")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
        for number in range(200):
            publisher.publish(registration, figures.figure_1, b"%d" % number)
            # When one is killed in the middle of that, and another one is there
            if number == 100:
                eventually(lambda: len(nodes.found("alpha")) >= 50, timeout=60.0)
                nodes.kill("bravo")
                nodes.start("delta")
        publisher.flush()
        eventually(lambda: nodes.found("alpha") == set(range(200)), timeout=60.0)
        # Expect the new one to have all, when those before it and the node of the publisher are gone as well
        eventually(lambda: nodes.kept("delta") == 200, timeout=60.0)
    nodes.kill("alpha")
    nodes.kill("charlie")
    eventually(lambda: nodes.found("delta") == set(range(200)), timeout=60.0)
