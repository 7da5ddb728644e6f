"""Savings by predicates, filters, compression on the way to each subscriber, and what fits a link of a given rate."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.spark.judging import Judge, MatchedRow, TaskSums, contents, has_unknown
from jbi_pubsub.spark.page import ResultTable, Value, integers, numbers, texts
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import Data, Study, counted, share, unapplied

RATES: Final = "7200,23000,1000000"
"""Bits a second: the two links of the paper's airborne study (section 3.1), and a megabit."""
SHORTEST: Final = 1.0
"""Seconds between the first and the last publication that tell of rates."""
STAGES: Final = ("offered", "predicates", "filters", "compressed")
_NOW: Final = 1_000_000
"""Times are kept in microseconds, to be ranked."""
_LAST: Final = 1 << 62


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:
    """Count the bytes that each subscriber process gets: an object once for all its subscriptions, cut or whole."""
    publication = seen.publication
    if publication.time is None:
        tally.add("untimed", "")
    else:
        at = int(publication.time * _NOW)
        tally.keep("first", "", at, "", 1)
        tally.keep("last", "", _LAST - at, "", 1)
    if not seen.matched:
        return
    deliveries = judge.deliveries(seen)
    if unknown := sum(has_unknown(seen, each) for each in deliveries):
        tally.add("unknown", "", unknown)
    packed: dict[bytes | None, int] = {}
    for subscriber, cuts in contents(deliveries).items():
        tally.add("predicates", subscriber, 1, seen.size)
        for cut in cuts:
            if cut not in packed:
                payload = publication.payload if cut is None else cut
                packed[cut] = _packed(publication.metadata, payload, publication.payload_bytes)
            tally.add("filters", subscriber, 1, seen.size_with(cut))
            tally.add("compressed", subscriber, 1, packed[cut])


def _packed(metadata: bytes, payload: bytes | None, whole: int) -> int:
    """Bytes of an object that is deflated by itself; a payload that was not kept counts as it is."""
    if payload is None:
        return min(len(zlib.compress(metadata)), len(metadata)) + whole
    return min(len(zlib.compress(metadata + payload)), len(metadata) + len(payload))


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:  # noqa: ARG001  # the form of all studies
    """The answer."""
    rates = _rates(str(parameters.get("rates", RATES)))
    first, last = (passed.kept(name, 1).get("", [(none, "")])[0][0] for name, none in (("first", 0), ("last", _LAST)))
    seconds, untimed = max(0, _LAST - last - first) / _NOW, passed.total("untimed")[0]
    no_rates = f"less than {SHORTEST:g} s of publications tell nothing of rates" if seconds < SHORTEST else ""
    if untimed:
        no_rates = f"{untimed:,} publications say no time: nothing is told of rates"
    rates = [] if no_rates else rates
    per = {"offered": _offered(passed, judge)}
    per |= {stage: {who: sums[1] for who, sums in passed.of(stage).items()} for stage in STAGES[1:]}
    totals = {stage: sum(per[stage].values()) for stage in STAGES}
    left = {stage: f"{total:,} bytes, {share(total, totals['offered'])}" for stage, total in totals.items()}
    links = {rate: _link(rate, [per[stage] for stage in STAGES], seconds) for rate in rates}
    return Result(
        study="bandwidth",
        question="How many bytes would go to each subscriber, and what do predicates, filters and compression save?",
        facts=(
            ("time", f"{seconds:,.0f} s of publications to {counted(len(per['offered']), 'subscriber')}"),
            ("offered", f"{totals['offered']:,} bytes: all objects of the registrations that they match"),
            ("after predicates", left["predicates"]),
            ("after filters", left["filters"]),
            ("compressed", f"{left['compressed']}; each object alone"),
            *([("links", no_rates)] if no_rates else []),
            *((f"links of {rate:,} bit/s", _said(link)) for rate, link in links.items()),
            *unapplied(passed),
        ),
        numbers={
            "seconds": round(seconds, 6),
            **{f"bytes_{stage}": totals[stage] for stage in STAGES},
            **{f"fits_{rate}": link[-1] for rate, link in links.items()},
        },
        tables=(_subscribers(per, seconds, rates), _links(links)),
        plots=(
            Plot(
                name="bytes",
                title="Bytes to all subscribers",
                kind="bars",
                x="",
                y="bytes",
                series=(Series("bytes", STAGES, tuple(float(totals[stage]) for stage in STAGES)),),
            ),
            *([_sorted_plot(per, seconds, rates)] if rates else []),
        ),
    )


def _rates(text: str) -> list[int]:
    try:
        rates = [int(each) for each in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate <= 10**12 for rate in rates) or len(rates) > 8:
        raise ConfigurationError(f"rates {text!r} are not bits a second, at most eight", hint=f"For example {RATES}")
    return sorted(set(rates))


def _offered(passed: Passed, judge: Judge) -> dict[str, int]:
    """Bytes of all objects of the registrations that a subscriber's templates match, each registration once."""
    offered: dict[str, int] = {}
    for registration, (_, size, _) in passed.of("publications").items():
        said = [each.subscription for each in judge.topic(registration).candidates]
        for who in {each.subscriber or each.subscription for each in said}:
            offered[who] = offered.get(who, 0) + size
    return offered


def _subscribers(per: Mapping[str, Mapping[str, int]], seconds: float, rates: Sequence[int]) -> ResultTable:
    packed = per["compressed"]
    order = sorted(per["offered"], key=lambda who: (-packed.get(who, 0), who))
    return ResultTable(
        name="subscribers",
        title="Bytes of each subscriber",
        columns=texts("subscriber") + integers(*STAGES) + numbers(*(f"fits_{rate}" for rate in rates)),
        rows=tuple(
            (who, *(per[stage].get(who, 0) for stage in STAGES), *_fit(packed.get(who, 0), seconds, rates))
            for who in order
        ),
        note="fits_N: the share of the compressed bytes that a link of N bit/s takes in that time.",
    )


def _links(links: Mapping[int, Sequence[int | float]]) -> ResultTable:
    return ResultTable(
        name="links",
        title="Subscribers whose load fits a link of its own",
        columns=integers("bits_per_second", *STAGES) + numbers("share"),
        rows=tuple((rate, *link) for rate, link in links.items()),
        note="share: of all compressed bytes, what fits.",
    )


def _fit(size: int, seconds: float, rates: Sequence[int]) -> list[float]:
    return [round(min(1.0, rate * seconds / (8 * size)), 4) if size else 1.0 for rate in rates]


def _link(rate: int, stages: Sequence[Mapping[str, int]], seconds: float) -> tuple[int | float, ...]:
    """Number of subscribers that fit at each stage, and the share of the compressed bytes that does."""
    room = rate * seconds / 8
    fits = [sum(1 for who in stages[0] if stage.get(who, 0) <= room) for stage in stages]
    carried = sum(min(size, room) for size in stages[-1].values())
    return (*fits, round(carried / max(1, sum(stages[-1].values())), 4))


def _said(link: Sequence[int | float]) -> str:
    offered, _, _, compressed, carried = link
    fit = counted(int(compressed), "subscriber")
    return f"{fit} fit, {offered:,} would unfiltered; {100 * carried:.1f} % of the bytes fit"


def _sorted_plot(per: Mapping[str, Mapping[str, int]], seconds: float, rates: Sequence[int]) -> Plot:
    """Subscribers from the most to the least, by the rate that each needs."""
    curves = []
    for stage in STAGES:
        needed = sorted((8 * size / max(seconds, 1e-9) for size in per[stage].values() if size), reverse=True)
        step = max(1, len(needed) // 400)
        none = len(per["offered"]) - len(needed)
        name = f"{stage}, {none:,} need nothing" if none else stage  # a logarithmic axis has no place for them
        curves.append(Series(name, tuple(range(1, len(needed) + 1, step)), tuple(needed[::step])))
    most = len(per["offered"])
    lines = [Series(f"{rate:,} bit/s", (1, most), (float(rate), float(rate))) for rate in rates if most]
    return Plot(
        name="rates",
        title="The rate that each subscriber needs",
        kind="lines",
        x="subscribers, the busiest first",
        y="bit/s",
        series=(*curves, *lines),
        log_y=True,
    )


STUDY: Final = Study("bandwidth", see, tell)
