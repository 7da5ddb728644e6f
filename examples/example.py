"""Examples: each is a program that plays, shows tables of what happened, and says which of its promises came true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from jbi_pubsub.core import extras

if TYPE_CHECKING:
    from jbi_pubsub.spark.plots import Plot

DATA: Final = Path(__file__).with_name("data")

EXAMPLES: Final = {
    "airborne": "An air tasking order, filtered for a link of 7,200 bit/s.",
    "alerts": "CAP alerts to e-mail: each one as it comes, or many in a digest.",
    "caution": "A master caution panel: subscriber, database and publisher.",
    "collaboratory": "Simulations of three domains, which scientists watch and steer.",
    "hla": "Flights and weather, two federations with a bridge between them.",
    "imagery": "Imagery and telemetry from around Kabul, and a map.",
    "network": "Three nodes on two networks that lose, and an island that comes back.",
    "node": "A client of the Common API, and a node that is stopped under it.",
    "sensors": "200 sensors, a fusion engine, and a tasking service found by Entry.",
}
"""The examples that `jbi demo NAME` plays, each a module here of that name with a function `run`."""
WRITES: Final = {"hla", "imagery"}
"""Those that write a file."""
_ARCHIVES: Final = {"collaboratory", "network", "node"}
"""Those that show an archive, too."""

TYPES: Final = ("important", "normal")
"""Types of the experiments with too little for all."""

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


def beside_paper(
    name: str, title: str, y: str, here: Mapping[str, Sequence[float]], paper: Mapping[str, Sequence[float]]
) -> Iterator[Plot]:
    """Plots of an important and a normal type under each mode: rates beside the paper's, and mean latencies, which are
    behind the rates in what is measured `here`."""
    from jbi_pubsub.spark.plots import Plot, Series  # here: most examples draw nothing

    rates = [
        Series.of(f"{each}, {where}", ((mode, said.get(mode, (0.0, 0.0))[at]) for mode in here))
        for where, said in (("here", here), ("paper", paper))
        for at, each in enumerate(TYPES)
    ]
    yield Plot(name=f"{name}-rates", title=title, kind="bars", x="", y=y, series=tuple(rates))
    late = [Series.of(each, ((mode, said[2 + at]) for mode, said in here.items())) for at, each in enumerate(TYPES)]
    title = f"{title.partition(':')[0]}: mean latency (under strict, normal objects never come)"
    yield Plot(name=f"{name}-latency", title=title, kind="bars", x="", y="seconds", series=tuple(late))


def left_out(name: str) -> str:
    """The part of that example which is not shown here, and how to get it; "" if it shows all."""
    library = extras.missing("archive") if name in _ARCHIVES else ""
    return library and f"what its archive shows: that needs {library}, pip install 'jbi-pubsub[archive]'"


def find(name: str) -> Callable[[ExampleOptions], ExampleOutcome]:
    """The example of that name, one of EXAMPLES."""
    run: Callable[[ExampleOptions], ExampleOutcome] = import_module(f"jbi_pubsub.examples.{name}").run
    return run
