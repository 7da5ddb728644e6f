"""Arguments of a public call are looked at each time, also when calls of the same types were taken before."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.errors import ArgumentError


@checked
def wait(name: str, timeout: float | None = None, *, count: int = 1) -> str:
    """Nothing; what it was given."""
    return f"{name} {timeout} {count}"


@pytest.mark.parametrize("given", [{"timeout": math.nan}, {"timeout": 1e12}, {"timeout": "soon"}, {"name": 7}])
def test_a_bad_value_is_refused_after_calls_that_were_good(given: dict[str, Any]) -> None:
    # Given: calls of the same shape, by place and by name
    for _ in range(3):
        assert wait("a", 1.0, count=2) == "a 1.0 2"
        assert wait(name="a", timeout=1.0) == "a 1.0 1"
    # When, expect
    with pytest.raises(ArgumentError, match=next(iter(given))):
        wait(**{"name": "a", **given})
    by_place = {"name": "a", "timeout": None, **given}
    with pytest.raises(ArgumentError, match=next(iter(given))):
        wait(*by_place.values(), count=2)
    assert wait(name="a", timeout=1.0) == "a 1.0 1"


def test_what_python_refuses_it_refuses_itself() -> None:
    wait("a", count=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'cuont'"):
        wait("a", cuont=1)  # type: ignore[call-arg]  # the same
    with pytest.raises(TypeError, match="positional"):
        wait("a", 1.0, 2)  # type: ignore[call-arg]  # the same
