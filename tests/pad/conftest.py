"""Delegates with an archive in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub.core.config import ArchiveSection
from tests.conftest import Federation


@pytest.fixture
def keeping() -> MemoryKeeping:
    return MemoryKeeping()


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes worlds of a class, each with an archive in memory, and ends their delegates."""
    worlds: list[Any] = []

    def stand(world: type[Any], memory: MemoryKeeping | None = None, **options: Any) -> Any:
        worlds.append(world(memory or MemoryKeeping(), monkeypatch, **options))
        return worlds[-1]

    yield stand
    for made in worlds:
        made.delegate.subscribers.late_joiners._thread = None
        made.delegate.close()
        if made.delegate.contracts.quality is not None:
            made.delegate.contracts.quality.close()


@pytest.fixture
def archived(federation: Federation, monkeypatch: pytest.MonkeyPatch, keeping: MemoryKeeping) -> Federation:
    """Delegates and peer publishers of the federation have this archive."""
    engine = type("engine", (), {"Archive": staticmethod(lambda _config: keeping)})
    monkeypatch.setitem(sys.modules, "jbi_pubsub.archive.engine", engine)
    federation.config = msgspec.structs.replace(federation.config, archive=ArchiveSection(folder="/nowhere"))
    return federation
