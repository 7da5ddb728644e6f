"""A federation under one authority."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority

from jbi_pubsub import Config
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.pad.server.server import DisseminationServer


class Party:
    """A federation under one authority, and the identities in it."""

    def __init__(self, folder: Path, fixtures: Any, stack: ExitStack) -> None:
        self.authority = Authority(folder)
        server = self.authority.issue("server.example")
        self.federation = fixtures.Federation(msgspec.structs.replace(fixtures.test_config(), tls=server), stack)
        self._number = 0

    def config(self, name: str = "", **tls: Any) -> Config:
        """Of somebody of that name, by default the delegate's."""
        section = self.authority.issue(name, number=1) if name else self.federation.config.tls
        return msgspec.structs.replace(self.federation.config, tls=msgspec.structs.replace(section, **tls))

    def pad(self, archive: Path | None = None, **tls: Any) -> DisseminationServer:
        """A delegate (alpha, rome), with an archive in that folder."""
        section = ArchiveSection(folder=str(archive), workers=0) if archive is not None else ArchiveSection()
        return self.federation.pad(config=msgspec.structs.replace(self.config(**tls), archive=section))

    def light(self, **options: Any) -> Any:
        """A publisher that signs, publisher.example."""
        return self.federation.light(self.config("publisher.example", sign=True), **options)

    def subscriber(self, verify: str = "require") -> Any:
        """A subscriber, subscriber.example."""
        return self.federation.subscriber(self.config("subscriber.example", verify=verify))


@pytest.fixture
def party(tmp_path: Path, fixtures: Any) -> Iterator[Party]:
    with ExitStack() as stack:
        yield Party(tmp_path, fixtures, stack)
