"""docs/archive.md as its reader follows it: beside a lookup service, and a delegate with an archive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from jbi_pubsub.core.config import ArchiveSection
from tests.conftest import Federation
from tests.test_pages import TOP, Reader, blocks
from tests.test_pages import reader as reader  # a fixture


@pytest.fixture
def archived(federation: Federation, tmp_path: Path) -> Federation:
    """Each delegate of the federation has an archive, in this process."""
    section = ArchiveSection(folder=str(tmp_path / "kept"), workers=0, reserve=0.0, memory=64 << 20)
    federation.config = msgspec.structs.replace(federation.config, archive=section)
    return federation


def test_the_page_is_followed(archived: Federation, reader: Reader, tmp_path: Path) -> None:
    # Given the servers of the page
    archived.pad("alpha", "rome")
    environment = {**reader.environment, "JBI_LOOKUP_LOCATORS": archived.lookups[0].address}
    follower = Reader(tmp_path, environment, {}, reader.eventually)
    # When each block is done as it stands there, expect what stands there
    try:
        for block in blocks(TOP / "docs" / "archive.md"):
            if block.mark not in ("not run", "test"):
                follower.follow(replace(block, mark="" if block.mark == "run by" else block.mark))
        follower.end()
    finally:
        follower.kill()
