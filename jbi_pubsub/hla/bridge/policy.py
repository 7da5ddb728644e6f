"""The matrix: which solution a bridge has for which problem (Bridging the HLA, sections 5 and 6).

Rules:
- What lets two federations end differently, or an attribute have two owners, needs `override = true`: consensus
  `naive` and `ignore`, ownership `allow-naive`.
- No restriction of federates prevents the race at the barrier (section 6.3): `barrier = "restrict"` is refused always.
- Time that advances on both sides together needs a lookahead above 0 of both surrogates: with none each side would
  wait for the other's next time stamp for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from jbi_pubsub.core import toml
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint


class Solutions(NamedTuple):
    """A solution for each problem."""

    consensus: str = "smart"
    barrier: str = "smart"
    failure: str = "smart"
    addressing: str = "none"
    ownership: str = "allow-smart"
    unowned: str = "smart"
    info: str = "smart"


CELLS: Final[Mapping[str, Mapping[str, str]]] = toml.read(Path(__file__).parent / "data" / "solutions.toml")
"""The solutions that there are for each problem, and what they mean."""
TIME: Final = {
    True: "time stamps mean the same on both sides; a deletion that is retracted is retracted on both",
    False: "each side has its own time; a deletion that is retracted on one side stays on the other",
}
"""Meaning of `[time] couple`."""
DISASTROUS: Final = frozenset({("consensus", "naive"), ("consensus", "ignore"), ("ownership", "allow-naive")})


def read(said: Mapping[str, Any]) -> Solutions:
    """The cells of a `[policy]` table. Raises ConfigurationError."""
    cells = {key: value for key, value in said.items() if key != "override"}
    override = said.get("override", False)
    if not isinstance(override, bool):
        raise ConfigurationError("override is true or false")
    for problem, solution in cells.items():
        if problem not in CELLS:
            raise ConfigurationError(f"no problem {problem[:60]!r}", hint=near_hint(problem, CELLS))
        if (problem, solution) == ("barrier", "restrict"):
            raise ConfigurationError(
                "no restriction of federates prevents the race at the barrier", hint='barrier = "smart" buffers'
            )
        if not isinstance(solution, str) or solution not in CELLS[problem]:
            raise ConfigurationError(f"{problem} = {solution!r}", hint=near_hint(str(solution), CELLS[problem]))
        if (problem, solution) in DISASTROUS and not override:
            raise ConfigurationError(
                f"{problem} = {solution!r}: {CELLS[problem][solution]}", hint="override = true, to have it all the same"
            )
    return Solutions(**cells)


def check_time(couples: bool, lookahead: float) -> None:
    """Raises ConfigurationError."""
    if couples and lookahead <= 0:
        raise ConfigurationError(
            "a bridge that couples time needs a lookahead above 0", hint="[time] lookahead = 0.001"
        )


def explained(policy: Solutions) -> Iterator[tuple[str, str, str]]:
    """Problem, solution, and what that means."""
    for problem, solution in policy._asdict().items():
        yield problem, solution, CELLS[problem][solution]
