"""Examples: each is a program that plays, shows tables of what happened, and says which of its promises came true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from jbi_pubsub.spark.plots import Plot

DATA: Final = Path(__file__).with_name("data")

EXAMPLES: Final = {
    "airborne": "An air tasking order, filtered for a link of 7,200 bit/s.",
    "alerts": "CAP alerts to e-mail: each one as it comes, or many in a digest.",
    "caution": "A master caution panel: subscriber, database and publisher.",
    "hla": "Flights and weather, two federations with a bridge between them.",
    "imagery": "Imagery and telemetry from around Kabul, and a map.",
    "node": "A client of the Common API, and a node that is stopped under it.",
    "sensors": "200 sensors, a fusion engine, and a tasking service found by Entry.",
}
"""The examples that `jbi demo NAME` plays, each a module here of that name with a function `run`."""
WRITES: Final = {"hla", "imagery"}
"""Those that write a file."""

Cell = str | int | float


class OutcomeTable(msgspec.Struct, frozen=True):
    """Table of what happened, for people."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


class Promise(NamedTuple):
    """Promise of an example, and whether it came true."""

    says: str
    kept: bool


class ExampleOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcome of one run. `plots` of what is measured."""

    tables: tuple[OutcomeTable, ...]
    promises: tuple[Promise, ...]
    plots: tuple[Plot, ...] = ()

    @property
    def right(self) -> bool:
        """Whether all promises came true, and there was one."""
        return bool(self.promises) and all(promise.kept for promise in self.promises)


class ExampleOptions(msgspec.Struct, frozen=True):
    """Options of a run. `quick`: the same with less of everything; `output`: for a file that it writes, None is
    its own choice; `tell`: for a line about how far it is."""

    tell: Callable[[str], object]
    quick: bool = False
    output: Path | None = None


def find(name: str) -> Callable[[ExampleOptions], ExampleOutcome]:
    """The example of that name, one of EXAMPLES."""
    run: Callable[[ExampleOptions], ExampleOutcome] = import_module(f"jbi_pubsub.examples.{name}").run
    return run
