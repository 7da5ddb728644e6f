"""Delegates that a forecast needs over the years, by the shape of a data set and costs that were measured here.

    objects/s     = publishers x rate
    deliveries/s  = objects/s x (deliveries an object and subscription) x subscriptions
    delegates     = (objects/s x cost of an object + deliveries/s x cost of a delivery) / what of a core is planned for

New publishers are taken to publish, and new subscribers to want, what those of the data set do. A delegate is one
process, which uses about one core (docs/machines.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark.judging import Judge, MatchedRow, TaskSums
from jbi_pubsub.spark.page import ResultTable, Value, integers, numbers
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import Data, Study

SPREAD: Final = (10, 50, 90)
"""Percentiles of the measured rounds that are told."""
STEPS: Final = 4
"""Steps of a year."""
DELIVERIES_MOST: Final = 1e15
"""A second: beyond, a forecast is a slip."""
NOT_IN_IT: Final = "TLS, networks, validation by schemas, mail, access rules, signatures, subscribers that hang"


class Costs(msgspec.Struct, frozen=True):
    """Rounds of (seconds of judging, seconds of delivering, objects, deliveries), and how many subscriptions of the
    data set the delegate would not take."""

    rounds: tuple[tuple[float, float, int, int], ...]
    refused: int = 0

    def parameters(self) -> dict[str, Value]:
        """Parameters of the study: microseconds an object and a delivery, at each percentile of SPREAD."""
        objects = [judging / number for judging, _, number, _ in self.rounds if number]
        deliveries = [delivering / copies for _, delivering, _, copies in self.rounds if copies]
        if not objects or not deliveries:
            raise StudyError(
                "nothing was delivered: no subscription matches the objects that were measured",
                hint="Take a data set whose publications somebody wants",
            )
        told: dict[str, Value] = {}
        for percent in SPREAD:
            told[f"object_p{percent}"] = round(1e6 * percentile(objects, percent), 3)
            told[f"delivery_p{percent}"] = round(1e6 * percentile(deliveries, percent), 3)
        return told


def percentile(values: Sequence[float], percent: int) -> float:
    """Percentile of a few values, with what lies between two taken as a line (R-7; Hyndman and Fan, 1996)."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:
    """Count each object's deliveries, and their bytes."""
    deliveries = judge.deliveries(seen)
    tally.add("deliveries", "", len(deliveries), sum(seen.size_with(each.payload) for each in deliveries))


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:  # noqa: ARG001  # the form of all
    """The answer."""
    objects, offered = (sum(sums[n] for sums in passed.of("publications").values()) for n in (0, 1))
    deliveries, carried, _ = passed.total("deliveries")
    subscriptions = len(data.contracts.subscriptions)
    if not (objects and deliveries):
        raise StudyError("nobody gets anything in this data set: it tells nothing of capacity")
    shape = deliveries / (objects * subscriptions)
    rows = tuple(_row(step / STEPS, shape, carried / deliveries, parameters) for step in range(_steps(parameters)))
    first, last = rows[0], rows[-1]
    return Result(
        study="capacity",
        question="How many delegates are needed, now and later?",
        facts=(
            ("an object", f"{offered / objects:,.0f} bytes, {deliveries / objects:.2f} deliveries"),
            ("of subscriptions", f"each wants {100 * shape:.3g} % of the objects"),
            ("an object costs", _spread("object", parameters)),
            ("a delivery costs", _spread("delivery", parameters)),
            ("delegates now", _needed(first)),
            (f"in {last[0]:g} years", _needed(last)),
            ("planned for", f"{100 * float(parameters['utilisation']):g} % of a core each"),
            ("not in it", NOT_IN_IT),
        ),
        numbers={
            "objects": objects,
            "deliveries_per_object": round(deliveries / objects, 6),
            "bytes_per_object": round(offered / objects, 3),
            "delegates_now": float(first[7]),
            "delegates_at_the_end": float(last[7]),
        },
        tables=(_table(rows),),
        plots=(_plot(rows),),
    )


Row = tuple[float, float, float, float, float, float, int, int, int]


def _steps(parameters: Mapping[str, Value]) -> int:
    return int(parameters["years"]) * STEPS + 1


def _row(year: float, shape: float, size: float, parameters: Mapping[str, Value]) -> Row:
    """Year, publishers, objects/s, subscriptions, deliveries/s, Mbit/s out, delegates at each percentile."""
    given = {name: float(value) for name, value in parameters.items() if not isinstance(value, str)}
    times = (1 + given["growth"]) ** year
    publishers, subscriptions = given["publishers"] * times, given["subscribers"] * times
    objects = publishers * given["rate"]
    deliveries = objects * shape * subscriptions
    if not deliveries <= DELIVERIES_MOST:
        raise StudyError(
            f"the forecast comes to {deliveries:.2g} deliveries a second in year {year:g}, more than "
            f"{DELIVERIES_MOST:.0e}",
            hint="Take smaller numbers, or fewer years",
        )
    low, middle, high = (
        max(
            1,
            ceil((objects * given[f"object_p{p}"] + deliveries * given[f"delivery_p{p}"]) / 1e6 / given["utilisation"]),
        )
        for p in SPREAD
    )
    told = (round(value, 2) for value in (publishers, objects, subscriptions, deliveries, deliveries * size * 8 / 1e6))
    return (year, *told, low, middle, high)


def _spread(what: str, parameters: Mapping[str, Value]) -> str:
    low, middle, high = (float(parameters[f"{what}_p{p}"]) for p in SPREAD)
    return f"{middle:,.1f} us of a core ({low:,.1f} to {high:,.1f}: the 10th to 90th percentile)"


def _needed(row: Row) -> str:
    low, middle, high = row[6:]
    spread = f" ({low:,} to {high:,})" if low != high else ""
    return f"{middle:,}{spread}, for {row[2]:,.0f} objects/s and {row[4]:,.0f} deliveries/s"


def _table(rows: Sequence[Row]) -> ResultTable:
    return ResultTable(
        name="forecast",
        title="Over the years",
        columns=numbers(
            "year", "publishers", "objects_per_second", "subscriptions", "deliveries_per_second", "mbit_per_second_out"
        )
        + integers("delegates_p10", "delegates_p50", "delegates_p90"),
        rows=tuple(rows),
        note=f"Costs are of this machine, measured in this run. Not in them: {NOT_IN_IT}.",
    )


def _plot(rows: Sequence[Row]) -> Plot:
    def of(n: int) -> tuple[float, ...]:
        return tuple(float(row[n]) for row in rows)

    return Plot(
        name="delegates",
        title="Delegates needed; the band is the 10th to 90th percentile of measured costs",
        kind="lines",
        x="years from now",
        y="delegates",
        series=(Series("delegates", of(0), of(7), low=of(6), high=of(8)),),
    )


STUDY: Final = Study("capacity", see, tell)
