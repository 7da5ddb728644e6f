"""What a query says is missing: what lookup services list, and nobody has answered for."""

from __future__ import annotations

import pytest

from jbi_pubsub.subscriber.coverage import ANOTHER, missing, named
from jbi_pubsub.subscriber.coverage import ArchiveAnswer as Answer


def _there(*listed: str) -> frozenset[str]:
    return frozenset(listed)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([Answer("a", _there("1"), ("1",))], [""], id="the one that is listed"),
        pytest.param([Answer("a", _there("1"), ("3", "2", "1"))], [""], id="the same, opened again since"),
        pytest.param([Answer("a", _there("1", "2"), ("2", "1"))], [""], id="both are listed there"),
        pytest.param([Answer("a", _there("2"), ("3", "1"))], [ANOTHER], id="a copy of before"),
        pytest.param([Answer("a", _there("1"), ())], [ANOTHER], id="one that does not say which it is"),
        pytest.param([Answer("a", _there(), ())], [""], id="nobody says which archives there are"),
        pytest.param(
            [Answer("a", _there("1"), (), "refused"), Answer("b", _there("2"), ("2", "1"))], ["", ""], id="it has moved"
        ),
        pytest.param(
            [Answer("a", _there("1"), (), "refused"), Answer("b", _there("2"), ("2", "1"), "cut")],
            ["refused", "cut"],
            id="it has moved and fails there",
        ),
        pytest.param(
            [Answer("a", _there("1"), ("9",)), Answer("b", _there(), ("2", "1"))], ["", ""], id="somebody else has its"
            " place, and it is elsewhere",
        ),
        pytest.param([Answer("a", _there("1"), ("1",), "", "damaged")], ["damaged"], id="it could not read all"),
        pytest.param([Answer("a", _there(), (), "refused")], ["refused"], id="one of which nothing is known"),
    ],
)  # fmt: skip
def test_what_is_listed_is_covered_or_named(answers: list[Answer], expected: list[str]) -> None:
    # Given what has become of each address
    # Expect that to be named for which nobody has answered
    assert missing(answers) == expected
    assert named(answers) == tuple(f"{a.address}: {why}" for a, why in zip(answers, expected, strict=True) if why)
