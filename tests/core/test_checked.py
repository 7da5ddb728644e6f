"""Arguments of a public call are looked at each time, also when calls of the same types were taken before."""

from __future__ import annotations

import math
from enum import StrEnum
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


class Text(str):
    """As numpy's str_ is one."""

    __slots__ = ()


class Bytes(bytes):
    """As numpy's bytes_ are."""


class Number(float):
    """As numpy's float64 is one."""


class Word(StrEnum):
    """One of a few."""

    ONE = "one"


@checked
def kinds(text: str, data: bytes, number: float = 0.0) -> tuple[type, ...]:
    """The types that it was given."""
    return type(text), type(data), type(number)


def test_values_of_derived_types_are_given_on_as_those_that_are_encoded() -> None:
    # Given, when: calls by place and by name, of exact types and derived ones by turns
    for _ in range(2):
        assert kinds("a", b"b", 1.0) == (str, bytes, float)
        # Expect the same call
        assert kinds(Text("a"), Bytes(b"b"), number=Number(1)) == (str, bytes, float)
        assert kinds(data=Bytes(b"b"), text="a") == (str, bytes, float)
        assert kinds(Word.ONE, b"b") == (Word, bytes, float)
    assert wait(Text("a"), Number(2.5)) == "a 2.5 1"
    # and that they are looked at as others are
    with pytest.raises(ArgumentError, match="timeout"):
        wait(Text("a"), Number(math.nan))
