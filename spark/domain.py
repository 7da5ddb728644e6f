"""A made-up data set of the paper's domain: imagery, tracks, target lists and alerts, who publishes and who wants them.

Every row is a pure function of (seed, table, number), so a larger data set begins as a smaller one does. Publishers,
subscribers, countries and the like follow Zipf's law with the exponent `skew`; `wildcards` is the share of a template's
fields that are left open, `selectivity` the share of its type's publications that a predicate of place lets through.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from math import log2, sqrt
from typing import Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, SubscriptionRow

MAXIMUM: Final = 10**9
"""Rows of a table at most."""
START: Final = 1_767_225_600.0
"""Publications begin on 2026-01-01 UTC, one a RATE-th of a second."""

COUNTRIES: Final = tuple(f"country-{n}" for n in range(40))
SENSORS: Final = ("EO", "IR", "SAR", "MSI", "LIDAR")
PLATFORMS: Final = tuple(f"platform-{n}" for n in range(200))
SEVERITIES: Final = ("Minor", "Moderate", "Severe", "Extreme")
CATEGORIES: Final = ("Met", "Geo", "Fire", "Health", "Transport", "Rescue", "Infra")
TARGETS: Final = 8
"""Targets of a list on average."""


class DomainType(msgspec.Struct, frozen=True):
    """A type: its name, its share, the entry class of its invariants with their values, and how it is written."""

    name: str
    share: int
    cls: EntryClass
    values: tuple[tuple[str, ...], ...]
    write: Callable[[random.Random, tuple[str | None, ...]], tuple[str, str | int]]


def _place(draw: random.Random) -> str:
    return f"<lat>{draw.uniform(-90, 90):.4f}</lat><lon>{draw.uniform(-180, 180):.4f}</lon>"


def _imagery(draw: random.Random, values: tuple[str | None, ...]) -> tuple[str, str | int]:
    country, sensor = values
    text = (
        f"<imagery><country>{country}</country><sensor>{sensor}</sensor>{_place(draw)}<cloud>{draw.randrange(101)}</cloud>"
        f"<resolution>{draw.choice((0.3, 0.5, 1, 2, 5, 10))}</resolution></imagery>"
    )
    return text, draw.randrange(50_000, 2_000_000)


def _track(draw: random.Random, values: tuple[str | None, ...]) -> tuple[str, str | int]:
    text = (
        f"<track><platform>{values[0]}</platform>{_place(draw)}<course>{draw.randrange(360)}</course>"
        f"<speed>{draw.uniform(0, 900):.1f}</speed><altitude>{draw.randrange(0, 15_000, 50)}</altitude></track>"
    )
    return text, draw.randrange(0, 200)


def _targets(draw: random.Random, values: tuple[str | None, ...]) -> tuple[str, str | int]:
    count = 1 + draw.randrange(2 * TARGETS)
    listed = "".join(
        f'<target id="T{draw.randrange(10**6)}" priority="{1 + draw.randrange(5)}">{_place(draw)}</target>'
        for _ in range(count)
    )
    text = f"<targets><country>{values[0]}</country>{_place(draw)}<count>{count}</count></targets>"
    return text, f"<list>{listed}</list>"


def _alert(draw: random.Random, values: tuple[str | None, ...]) -> tuple[str, str | int]:
    severity = SEVERITIES[min(3, int(-log2(1 - draw.random())))]
    text = (
        f"<alert><sender>{values[0]}</sender><category>{draw.choice(CATEGORIES)}</category><severity>{severity}</severity>"
        f"<certainty>{draw.choice(('Observed', 'Likely', 'Possible'))}</certainty>{_place(draw)}</alert>"
    )
    return (
        text,
        f"<info><headline>Alert</headline><description>{'Stay inside. ' * draw.randrange(1, 20)}</description></info>",
    )


_product: Final = define("domain.Product", {})
KINDS: Final = (
    DomainType(
        "imagery",
        3,
        define("domain.Imagery", {"country": str, "sensor": str}, _product),
        (COUNTRIES, SENSORS),
        _imagery,
    ),
    DomainType("track", 9, define("domain.Track", {"platform": str}, _product), (PLATFORMS,), _track),
    DomainType("targets", 2, define("domain.Targets", {"country": str}, _product), (COUNTRIES,), _targets),
    DomainType("alert", 2, define("domain.Alert", {"sender": str}, _product), (COUNTRIES,), _alert),
)
_SHARES: Final = tuple(accumulate(kind.share for kind in KINDS))


class StudyDomain(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of everything. Raises ConfigurationError for numbers out of range."""

    registrations: int = 100
    subscriptions: int = 1_000
    publications: int = 100_000
    seed: int = 1
    skew: float = 1.0
    wildcards: float = 0.5
    selectivity: float = 0.01
    rate: float = 100.0
    delegates: int = 4

    def __post_init__(self) -> None:
        least = {"registrations": 1, "subscriptions": 0, "publications": 0, "seed": 0, "delegates": 1}
        for name, low in least.items():
            if not low <= getattr(self, name) <= MAXIMUM:
                raise ConfigurationError(f"{name} = {getattr(self, name)} is not in {low}..{MAXIMUM}", setting=name)
        bounds = {"skew": (0, 5), "wildcards": (0, 1), "selectivity": (0, 1), "rate": (1e-6, 1e6)}
        for name, (lowest, highest) in bounds.items():
            if not lowest <= getattr(self, name) <= highest:  # NaN is in no range
                raise ConfigurationError(f"{name} = {getattr(self, name)} is not in {lowest}..{highest}", setting=name)

    def contracts(self) -> Contracts:
        """All registrations and subscriptions."""
        return Contracts(
            tuple(map(self._registration, range(self.registrations))),
            tuple(map(self._subscription, range(self.subscriptions))),
        )

    def published(self, start: int = 0, step: int = 1) -> Iterator[PublicationRow]:
        """Every `step`-th publication from `start`."""
        registrations = [self._registration(n) for n in range(self.registrations)]
        kinds = {kind.name: kind for kind in KINDS}
        for number in range(start, self.publications, step):
            draw = self._draw("publication", number)
            chosen = registrations[self._zipf(draw, len(registrations))]
            text, payload = kinds[chosen.type].write(draw, chosen.entries[0].values)
            metadata = text.encode()
            body = payload.encode() if isinstance(payload, str) else None
            size = payload if isinstance(payload, int) else len(payload)
            at = START + number / self.rate
            yield PublicationRow(f"{number:012x}", chosen.type, "1.0", at, chosen.registration, metadata, size, body)

    def _registration(self, number: int) -> RegistrationRow:
        draw = self._draw("registration", number)
        kind = KINDS[bisect(_SHARES, draw.randrange(_SHARES[-1]))]
        values = tuple(known[self._zipf(draw, len(known))] for known in kind.values)
        return RegistrationRow(
            registration=f"registration-{number}",
            publisher=f"publisher-{number // 4}",
            delegate=f"delegate-{number % self.delegates}",
            type=kind.name,
            version="1.0",
            entries=(EntryRep(kind.cls, values),),
        )

    def _subscription(self, number: int) -> SubscriptionRow:
        draw = self._draw("subscription", number)
        kind = KINDS[bisect(_SHARES, draw.randrange(_SHARES[-1]))]
        fixed = tuple(
            None if draw.random() < self.wildcards else known[self._zipf(draw, len(known))] for known in kind.values
        )
        return SubscriptionRow(
            subscription=f"subscription-{number}",
            subscriber=f"subscriber-{self._zipf(draw, max(1, self.subscriptions // 10))}",
            template=(EntryRep(kind.cls, fixed),),
            predicate=self._predicate(draw, kind),
            filter="//target[@priority > 3]" if kind.name == "targets" and draw.random() < 0.5 else "",
        )

    def _predicate(self, draw: random.Random, kind: DomainType) -> str:
        if self.selectivity >= 1:
            return ""
        high, wide = 180 * sqrt(self.selectivity), 360 * sqrt(self.selectivity)
        south, west = draw.uniform(-90, 90 - high), draw.uniform(-180, 180 - wide)
        box = f"lat >= {south:.4f} and lat < {south + high:.4f} and lon >= {west:.4f} and lon < {west + wide:.4f}"
        if kind.name == "alert" and draw.random() < 0.5:
            return f"/{kind.name}[({box}) or severity = '{SEVERITIES[3]}']"
        if draw.random() < 0.3:  # what a template could say
            name, known = kind.cls.fields[0], kind.values[0]
            box += f" and {name} = '{known[self._zipf(draw, len(known))]}'"
        return f"/{kind.name}[{box}]"

    def _draw(self, table: str, number: int) -> random.Random:
        return random.Random(f"{self.seed} {table} {number}")  # noqa: S311  # made-up data

    def _zipf(self, draw: random.Random, size: int) -> int:
        bounds = _bounds(size, self.skew)
        return min(bisect(bounds, draw.random() * bounds[-1]), size - 1)


@lru_cache(maxsize=64)
def _bounds(size: int, skew: float) -> tuple[float, ...]:
    return tuple(accumulate((n + 1) ** -skew for n in range(size)))
