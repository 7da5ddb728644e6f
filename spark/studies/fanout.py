"""Deliveries of objects: how many, whom they go to, which delegates carry them, and how else they could share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from jbi_pubsub.spark.dataset import RegistrationRow, hashed
from jbi_pubsub.spark.judging import MANY, Judge, MatchedRow, TaskSums, contents, has_unknown
from jbi_pubsub.spark.page import ResultTable, Value, integers, texts
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series, by_octave
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import Data, Study, share, unapplied

HOTTEST: Final = 50
_RANKS: Final = 1 << 60
DELEGATES: Final = 4
"""Delegates that registrations are shared out to in thought, unless told otherwise."""


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:
    """Count deliveries of each object, and those of subscriptions, subscribers and registrations."""
    publication, deliveries = seen.publication, judge.deliveries(seen)
    sizes = [seen.size_with(each.payload) for each in deliveries]
    tally.add("fanout", f"{len(deliveries):07d}")
    tally.add("registration", publication.publisher, len(deliveries), sum(sizes))
    for each, size in zip(deliveries, sizes, strict=True):
        tally.add("subscription", f"{each.wanted.number:07d}", 1, size)
    if unknown := sum(has_unknown(seen, each) for each in deliveries):
        tally.add("unknown", "", unknown)
    if seen.withheld:
        tally.add("withheld", "", seen.withheld)
    if suppressed := len(seen.matched) - len(deliveries) - seen.withheld:
        tally.add("suppressed", "", suppressed)
    for subscriber, payloads in contents(deliveries).items():
        tally.add("subscriber", subscriber, len(payloads), sum(map(seen.size_with, payloads)))
    rank = _RANKS - len(deliveries)
    tally.keep("hot", "", rank, f"{publication.object_id}{MANY}{publication.type}", HOTTEST)


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:
    """The answer."""
    spread = {int(key): sums[0] for key, sums in passed.of("fanout").items()}
    objects, deliveries = sum(spread.values()), sum(n * times for n, times in spread.items())
    copies = sum(sums[0] for sums in passed.of("subscriber").values())
    loads = _loads(passed, data)
    count = int(parameters.get("delegates", DELEGATES))
    assignments = {name: share_out(loads, count) for name, share_out in STRATEGIES.items()}
    at = {each.registration: each.delegate for each in (*data.contracts.registrations, *loads)}
    now = _balance(loads, at, at.values())
    then = {name: _balance(loads, given, _numbered(count))[0] for name, given in assignments.items()}
    return Result(
        study="fanout",
        question="How many deliveries does an object make, and how is the work shared out?",
        facts=(
            ("objects", f"{objects:,}, {share(spread.get(0, 0), objects)} of them for nobody"),
            (
                "deliveries",
                f"{deliveries:,}, {deliveries / max(1, objects):.2f} an object, {max(spread, default=0):,} at most",
            ),
            *_said(passed),
            ("copies over links", f"{copies:,}: an object goes to a process once, for all that get the same of it"),
            ("delegates now", f"{len(now[1])}, the busiest has {now[0]:.2f} times the mean"),
            *(
                (f"{count} delegates {name}", f"the busiest would have {n:.2f} times the mean")
                for name, n in then.items()
            ),
        ),
        numbers={
            "objects": objects,
            "unmatched": spread.get(0, 0),
            "deliveries": deliveries,
            "suppressed": passed.total("suppressed")[0],
            "withheld": passed.total("withheld")[0],
            "copies": copies,
            "most": max(spread, default=0),
            "balance_now": round(now[0], 4),
            **{f"balance_{name.replace(' ', '_')}": round(n, 4) for name, n in then.items()},
        },
        tables=(
            _fanout(spread),
            _subscriptions(passed, judge),
            _subscribers(passed),
            _delegates(now[1], loads, Counter(at.values())),
            _hot(passed),
            _assigned(loads, assignments),
        ),
        plots=(_spread_plot(spread), _balance_plot(loads, count, assignments)),
    )


def _said(passed: Passed) -> list[tuple[str, str]]:
    """Facts on what filters have kept back, and what they could not be asked."""
    suppressed, withheld = (passed.total(what)[0] for what in ("suppressed", "withheld"))
    facts = []
    if suppressed:
        facts.append(("suppressed", f"{suppressed:,}: matched, and a payload filter selected nothing"))
    if withheld:
        facts.append(("withheld", f"{withheld:,}: matched, and the payload filter can't be applied to the payload"))
    return facts + unapplied(passed)


class _Load(RegistrationRow, frozen=True, kw_only=True):
    """A registration with what it brings: objects, deliveries, bytes delivered."""

    objects: int
    deliveries: int
    size: int

    @property
    def work(self) -> int:
        """An object and a delivery cost a delegate about the same."""
        return self.objects + self.deliveries


def _loads(passed: Passed, data: Data) -> list[_Load]:
    known = {each.registration: each for each in data.contracts.registrations}
    delivered = passed.of("registration")
    found = []
    for uid, sums in passed.of("publications").items():
        each = known.get(uid, RegistrationRow(registration=uid, type=uid))
        fields = {name: getattr(each, name) for name in RegistrationRow.__struct_fields__}
        number, size, _ = delivered[uid]
        found.append(_Load(**fields, objects=sums[0], deliveries=number, size=size))
    return found


def _by_type(loads: Sequence[_Load], count: int) -> dict[str, str]:
    """All registrations of a type together."""
    return {load.registration: f"{hashed(load.type.encode()) % count}" for load in loads}


def _by_hash(loads: Sequence[_Load], count: int) -> dict[str, str]:
    """By their id, whatever they are."""
    return {load.registration: f"{hashed(load.registration.encode()) % count}" for load in loads}


def _by_load(loads: Sequence[_Load], count: int) -> dict[str, str]:
    """The largest first, each to who has least (Graham's LPT rule: at most 4/3 of the best)."""
    work = [0] * count
    given: dict[str, str] = {}
    for load in sorted(loads, key=lambda each: (-each.work, each.registration)):
        least = min(range(count), key=lambda n: work[n])
        work[least] += load.work
        given[load.registration] = f"{least}"
    return given


STRATEGIES: Final = {"by type": _by_type, "by hash": _by_hash, "by load": _by_load}


def _numbered(count: int) -> list[str]:
    return [f"{n}" for n in range(count)]


def _balance(
    loads: Sequence[_Load], given: Mapping[str, str], delegates: Iterable[str]
) -> tuple[float, dict[str, int]]:
    """Work of the busiest in times of the mean, and the work of each: of who has none, too."""
    work = dict.fromkeys(delegates, 0)
    for load in loads:
        work[given[load.registration]] += load.work
    return max(work.values(), default=0) * len(work) / max(1, sum(work.values())), work


def _fanout(spread: Mapping[int, int]) -> ResultTable:
    return ResultTable(
        name="fanout",
        title="Objects by their number of deliveries",
        columns=integers("deliveries", "objects"),
        rows=tuple(sorted(spread.items())),
    )


def _subscriptions(passed: Passed, judge: Judge) -> ResultTable:
    rows: list[tuple[str, str, str, int, int]] = []
    for key, (number, size, _) in passed.of("subscription").items():
        said = judge.wanted[int(key)].subscription
        rows.append((said.subscription, said.subscriber, said.predicate, number, size))
    rows.sort(key=lambda row: (-row[3], row[0]))
    return ResultTable(
        name="subscriptions",
        title="Subscriptions by what they get",
        columns=texts("subscription", "subscriber", "predicate") + integers("objects", "bytes"),
        rows=tuple(rows),
    )


def _subscribers(passed: Passed) -> ResultTable:
    found = [(key, sums[0], sums[1]) for key, sums in passed.of("subscriber").items()]
    found.sort(key=lambda row: (-row[1], row[0]))
    return ResultTable(
        name="subscribers",
        title="Subscribers by what goes over their link",
        columns=texts("subscriber") + integers("objects", "bytes"),
        rows=tuple(found),
        note="An object for several subscriptions of a subscriber is counted once, or once for each payload that their "
        "filters leave of it.",
    )


def _delegates(work: Mapping[str, int], loads: Sequence[_Load], registrations: Mapping[str, int]) -> ResultTable:
    rows = []
    for delegate in sorted(work):
        own = [load for load in loads if load.delegate == delegate]
        rows.append(
            (
                delegate,
                registrations[delegate],
                sum(each.objects for each in own),
                sum(each.deliveries for each in own),
                sum(each.size for each in own),
            )
        )
    return ResultTable(
        name="delegates",
        title="Delegates as they are",
        columns=texts("delegate") + integers("registrations", "objects", "deliveries", "bytes"),
        rows=tuple(rows),
    )


def _hot(passed: Passed) -> ResultTable:
    kept = passed.kept("hot", HOTTEST).get("", [])
    return ResultTable(
        name="hottest",
        title="Objects with most deliveries",
        columns=texts("object", "type") + integers("deliveries"),
        rows=tuple((*text.split(MANY, 1), _RANKS - rank) for rank, text in kept),
    )


def _assigned(loads: Sequence[_Load], assignments: Mapping[str, Mapping[str, str]]) -> ResultTable:
    columns = (name.replace(" ", "_") for name in assignments)
    return ResultTable(
        name="assignment",
        title="Registrations distributed again",
        columns=texts("registration", "publisher", "type") + integers("work", *columns),
        rows=tuple(
            (
                load.registration,
                load.publisher,
                load.type,
                load.work,
                *(int(given[load.registration]) for given in assignments.values()),
            )
            for load in loads
        ),
        note="The number of the delegate that each registration would have. work: objects and deliveries.",
    )


def _spread_plot(spread: Mapping[int, int]) -> Plot:
    return Plot(
        name="fanout",
        title="Objects by their number of deliveries",
        kind="bars",
        x="deliveries",
        y="objects",
        series=(by_octave("objects", spread.items()),),
    )


def _balance_plot(loads: Sequence[_Load], count: int, assignments: Mapping[str, Mapping[str, str]]) -> Plot:
    names = tuple(_numbered(count))
    series = []
    for name, given in assignments.items():
        work = _balance(loads, given, names)[1]
        series.append(Series(name, names, tuple(float(work[n]) for n in names)))
    return Plot(
        name="balance",
        title=f"Work of {count} delegates",
        kind="bars",
        x="delegate",
        y="objects and deliveries",
        series=tuple(series),
    )


STUDY: Final = Study("fanout", see, tell)
