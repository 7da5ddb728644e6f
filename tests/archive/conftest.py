"""Archives to publish into and to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core import guard
from jbi_pubsub.core.config import ArchiveSection, Config
from jbi_pubsub.core.info_object import TypeName

TRACK = TypeName("track", "1.0")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Archive]]:
    archives: list[Archive] = []
    before = guard.faults()

    def make(*, volume: int = 60_000, is_indexed: bool = True, **settings: Any) -> Archive:
        section = ArchiveSection(
            **{"folder": str(tmp_path / "archive"), "reserve": 0.0, "memory": 64 << 20, **settings}
        )
        archives.append(Archive(Config(archive=section), volume_bytes=volume, is_indexed=is_indexed))
        return archives[-1]

    yield make
    for archive in archives:
        archive.close()
    assert guard.faults() == before
