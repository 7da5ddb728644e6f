"""What a delegate asks other type repositories costs it little where there is nobody to ask."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub import Config
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.errors import LookupNotFoundError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.pad.server import repositories
from jbi_pubsub.pad.server.repositories import Repositories


class Community:
    """Lookup services: as many as are there."""

    def __init__(self) -> None:
        self.there = 0
        self.asked = 0

    def connected(self) -> int:
        return self.there

    def lookup(self, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        if not self.there:
            raise LookupNotFoundError("no lookup service answered")
        return []


def test_without_a_lookup_service_it_is_waited_for_once_and_not_by_each_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a delegate that no lookup service answers
    now = [100.0]
    monkeypatch.setattr(repositories.time, "monotonic", lambda: now[0])
    community = Community()
    asked = Repositories("us", TypeRepository(), community, Config().security(), None)  # type: ignore[arg-type]
    # When strangers ask for types that nobody knows
    for number in range(100):
        assert asked.schema(TypeName(f"unknown{number}")) is None
    # Expect one wait, and another one when some time is over
    assert community.asked == 1
    now[0] += repositories.NOBODY_SECONDS + 1
    assert asked.schema(TypeName("unknown")) is None
    assert community.asked == 2
    # and each to ask as soon as there is one
    community.there = 1
    assert asked.schema(TypeName("unknown")) is None
    assert asked.schema(TypeName("other")) is None
    assert community.asked == 4
