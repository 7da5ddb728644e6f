"""Commands to applications, and what applications say of themselves, up to their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import Domain
from jbi_pubsub.core.errors import ConfigurationError, EntryError


def test_application_has_a_thousand_parameters_and_is_watched_by_a_long_constraint(
    domain: Callable[[], Domain], eventually: Callable[..., Any]
) -> None:
    # Given an application with many parameters
    here = domain()
    names = [f"permeability_layer_{number:04}" for number in range(1_000)]
    reservoir = here.application("reservoir", lambda: {"step": 199}, period=0.05)
    for name in names:
        reservoir.steer(name, get=lambda: 1)
    anna, seen = here.client("anna"), list[Any]()
    # When it is looked for, expect all of them
    (found,) = eventually(lambda: anna.find(f"'{names[-1]}' in parameters"))
    assert found.properties["parameters"] == tuple(names)
    # and one for which there is no room to be refused, and the others to be as they were
    with pytest.raises(EntryError, match="property parameters has"):
        reservoir.steer("x" * 32_000, get=lambda: 2)
    with pytest.raises(EntryError, match="property parameters has"):
        reservoir.steer("x" * 32_000, get=lambda: 2)
    with pytest.raises(ConfigurationError, match="no parameter"):
        anna.get("reservoir", "x" * 32_000)
    assert anna.get("reservoir", names[-1]) == 1
    # and events to come by a constraint of many words
    anna.watch("reservoir", " or ".join(f"step == {number}" for number in range(200)), seen.append)
    eventually(lambda: seen)
