"""Two platforms in this process, each with a lookup service and a delegate of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from jbi_pubsub import InfoObject, PublisherAdapterLight, RegistrationUid
from jbi_pubsub.bridge.platform import SideSubscriber
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.core.config import PadSection
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.pad.server.server import DisseminationServer
from tests.conftest import Federation, Figures, test_config

ALPHA, BRAVO = ("alpha", "rome"), ("bravo", "paris")


@dataclass
class Place:
    """A platform as its users know it."""

    federation: Federation
    delegate: tuple[str, str]
    pad: DisseminationServer
    figures: Figures

    def subscriber(self, **options: Any) -> tuple[SideSubscriber, Any]:
        """A subscriber of this platform, and its subscription (this process has one for each platform)."""
        adapter = self.federation.stack.enter_context(SideSubscriber(self.federation.config))
        return adapter, adapter.register_subscriber(**options)

    def publisher(self, **options: Any) -> tuple[PublisherAdapterLight, RegistrationUid]:
        """A publisher of figure 1."""
        adapter = self.federation.light()
        at = adapter.connect_to_delegate(*self.delegate)
        return adapter, adapter.register_publisher(at, self.figures.schema, self.figures.figure_1, **options)


def taken(adapter: Any, uid: Any, count: int, timeout: float = 60.0) -> list[InfoObject]:
    """So many objects, and whatever comes within a moment behind them."""
    found = []
    while len(found) < count and (obj := adapter.receive(uid, timeout)) is not None:
        found.append(obj)
    while (obj := adapter.receive(uid, 0.2)) is not None:
        found.append(obj)
    return found


@pytest.fixture
def bundle(figures: Figures) -> SchemaBundle:
    return read_bundle(figures.schema, marks=None, name="", version="1.0", locations={})


@pytest.fixture
def place(federation: Federation, figures: Figures) -> Iterator[Callable[..., Place]]:
    """place(delegate, **config) is one more platform; `federation` looks after the threads that are left."""
    with ExitStack() as stack:

        def made(delegate: tuple[str, str] = ALPHA, **sections: Any) -> Place:
            pad = PadSection(settle_seconds=0.3)  # nobody else is on his way to a delegate that stops
            one = Federation(test_config(**{"pad": pad} | sections), stack)
            return Place(one, delegate, one.pad(*delegate), figures)

        yield made
