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
from typing import Any, Final, NamedTuple

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


CELLS: Final[Mapping[str, Mapping[str, str]]] = {
    "consensus": {
        "smart": "a surrogate consents when the RTI's own queries say that all others on the far side have",
        "add": "a surrogate consents when its RTI tells it that it is the only one that has not",
        "naive": "each surrogate waits for the other side to be done: they wait for each other for ever",
        "restrict": "a save, restore or point stays in its federation: the surrogate consents at once",
        "ignore": "the surrogate consents at once, whatever becomes of it on the other side",
    },
    "barrier": {
        "smart": "what may not happen yet on the other side waits in the bridge until it may",
        "ignore": "what comes goes at once; what comes too early is counted",
    },
    "failure": {
        "smart": "what is called the same on both sides is renamed on the far one: FEDERATION:NAME",
        "add": "a refusal on the far side is told to the federate that asked; of two points of one label one wins",
        "naive": "a refusal on the far side is known to the bridge alone",
        "restrict": "labels and object names begin with FEDERATION:, others are refused",
        "ignore": "after a refusal the surrogate consents for the far side",
    },
    "addressing": {
        "none": "a point for some federates is one for all of the other side if the surrogate is one of them",
        "add": "sets have names, and members in each federation",
    },
    "ownership": {
        "allow-smart": "attributes change their owner over the bridge, one side after the other",
        "allow-add": "the same, and a claim that is taken back on one side is taken back on the other",
        "allow-naive": "attributes change their owner over the bridge, and two may get one at once",
        "deny": "attributes stay on their side",
    },
    "unowned": {
        "smart": "of an attribute that nobody owns the bridge has the last value, and gives that",
        "add": "the RTI is told that nobody owns it",
        "ignore": "a value that nobody owns is given by nobody",
    },
    "info": {
        "smart": "the bridge asks for the values of what was there when it joined",
        "restrict": "the bridge joins before all others; instances that were there before are told in the log",
        "ignore": "values from before the bridge joined are not known on the other side until they change",
    },
}

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
