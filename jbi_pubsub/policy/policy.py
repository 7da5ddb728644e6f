"""Policies and what follows from them: context => settings, (v, i, P) of QED, section IV. Pure.

Rules:
- A policy applies where all its keys and its `when` hold. Those that apply are ranked: by precedence; then the more
  specific one; then the higher importance; then by name. The order of a file has no meaning.
- Each field is taken by itself from the first that says something of it. None ("none" in a file) forbids it, a field
  that is not there is inherited from the next. The default is always there: importance 3, nothing else.
- What is asked about objects and resources is decided later: a resolution keeps it as a short list of conditions.
- A wish ranks behind all policies: it may say what they leave open, and narrow what they say, as far as `allow` goes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jbi_pubsub.core.quality import GrantedQos, LinkTerms, PayloadShape, Rate, Reduced, Settings, Wish
from jbi_pubsub.core.toml import TextPlace

from .condition import Node, restricts
from .context import Addresses, CallerFacts, Globs, are_covered
from .units import with_unit

FIELDS: Final = ("importance", "deadline", "shape", "max_rate", "max_size", "oversize", "replace", "queue")
"""Fields that a policy may set."""
OPERATIONS: Final = ("publish", "subscribe", "query")
"""Actions that open contracts."""

Value = int | float | str | tuple[PayloadShape, ...] | Rate | None
"""Value of a field; None forbids it."""

SPECIFICITY: Final = (
    (48, ("user",)),
    (40, ("group", "role", "client", "component", "address")),
    (34, ("type",)),
    (22, ("version", "action", "delivery", "attribute")),
    (2, ("size", "payload_type", "metadata")),
    (1, ("bandwidth", "backlog", "queue", "queue_bytes", "memory", "cpu", "loss")),
)
"""Points of a context for each of these that it restricts: user and type and action come before user and type, these
before type and action, then user, group, type, action; objects and resources never outweigh a key."""

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = 86_400.0


class Policy:
    """A policy as a file says it, under the file's own keys: Policy("Tracks", type="track.*", importance=4)."""

    def __init__(self, name: str, **said: Any) -> None:
        """`said`: the keys of `[[policy]]`; `from_` stands for `from`, which Python keeps for itself."""
        self.name: Final = name
        self.said: Final[Mapping[str, Any]] = {key.removesuffix("_"): value for key, value in said.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and (self.name, self.said) == (other.name, other.said)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Policy({self.name!r}, {', '.join(f'{key}={value!r}' for key, value in self.said.items())})"


@dataclass(frozen=True, slots=True)
class Effectivity:
    """When a policy counts: seconds since 1970 between which it does, hours of the day in seconds and days of the week
    (0 Monday), both UTC."""

    begin: float | None = None
    until: float | None = None
    hours: tuple[float, float] | None = None
    days: frozenset[int] | None = None

    def is_on(self, now: float) -> bool:
        """Whether it counts at that time."""
        if (self.begin is not None and now < self.begin) or (self.until is not None and now >= self.until):
            return False
        day, second = divmod(now, _DAY)
        if self.hours is not None:
            first, last = self.hours
            if first < last:
                if not first <= second < last:
                    return False
            elif second < last:
                day -= 1  # a night belongs to the day on which it begins
            elif second < first:
                return False
        return self.days is None or int(day + 3) % 7 in self.days  # 1970 began on a Thursday

    def next_change(self, now: float) -> float:
        """The next time at which that may be otherwise; inf: never."""
        times = [at for at in (self.begin, self.until) if at is not None and at > now]
        if self.hours is not None or self.days is not None:
            midnight = now - now % _DAY
            daily = {0.0, *(self.hours or ())}
            times.append(min(at for days in (0, 1) for each in daily if (at := midnight + days * _DAY + each) > now))
        return min(times, default=float("inf"))


@dataclass(frozen=True, eq=False, slots=True)
class PolicyRule:
    """A policy made ready."""

    name: str
    place: TextPlace
    keys: Mapping[str, Globs | Addresses]
    fields: Mapping[str, Value]
    condition: Node = True
    attributes: Mapping[str, Globs] = field(default_factory=dict)
    precedence: int = 0
    allow: Mapping[str, Any] = field(default_factory=dict)
    """Bounds of a wish: `importance` least and most; `deadline`, `max_rate`, `max_size` the most; `shape`, `replace`
    whether."""
    effectivity: Effectivity | None = None
    mission: str = ""
    specificity: int = field(init=False)
    rank: tuple[int, int, int, str] = field(init=False)
    """The least comes first."""

    def __post_init__(self) -> None:
        about = {*self.keys, *restricts(self.condition), *(["attribute"] if self.attributes else [])}
        specificity = sum(points for points, names in SPECIFICITY if not about.isdisjoint(names))
        object.__setattr__(self, "specificity", specificity)
        importance = self.fields.get("importance", 0)
        assert isinstance(importance, int)
        object.__setattr__(self, "rank", (-self.precedence, -specificity, -importance, self.name))

    def miss(self, facts: CallerFacts) -> str:
        """The first key that does not hold; "": they all do."""
        for key, matcher in self.keys.items():
            if not matcher.any_of(getattr(facts, key)):
                return key
        for name, globs in self.attributes.items():
            if not globs.any_of((facts.attribute_of(name),)):
                return f"attribute {name}"
        return ""

    def is_on(self, now: float) -> bool:
        """Whether it counts at that time."""
        return self.effectivity is None or self.effectivity.is_on(now)

    def covers(self, other: PolicyRule) -> bool:
        """Whether whatever the other one is about is certain to be what this one is about, at all times."""
        if self.effectivity is not None or (self.condition is not True and self.condition != other.condition):
            return False
        return are_covered(other.keys, self.keys) and are_covered(other.attributes, self.attributes)

    def behind(self, winner: PolicyRule) -> str:
        """Why the winner ranks before it."""
        if self.precedence != winner.precedence:
            return f"precedence {self.precedence} < {winner.precedence}"
        if self.specificity != winner.specificity:
            return f"less specific: {self.specificity} < {winner.specificity}"
        if self.rank[2] != winner.rank[2]:
            return f"importance {-self.rank[2] or 'not said'}, the other has {-winner.rank[2]}"
        return "the name comes later"


@dataclass(frozen=True, slots=True)
class Membership:
    """Which contracts are behind a link."""

    terms: LinkTerms
    members: Node
    specificity: int


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """Settings in force, and which policy each field is from; `allow` likewise, with what it says."""

    settings: Settings
    winners: Mapping[str, PolicyRule]
    allow: Mapping[str, tuple[Any, PolicyRule]]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Policies of a contract that apply, or may, in their order, each with what is to be decided yet."""

    facts: CallerFacts
    candidates: tuple[tuple[PolicyRule, Node], ...]
    link: str = ""
    version: int = 0

    @property
    def residues(self) -> tuple[Node, ...]:
        """Conditions that ask for objects or resources, each once; () for nearly all contracts."""
        return tuple(dict.fromkeys(node for _, node in self.candidates if node is not True))

    @property
    def settings(self) -> Settings:
        """Without what is to be decided yet."""
        return self.outcome().settings

    def outcome(self, holds: Callable[[Node], bool] = lambda _node: False) -> PolicyOutcome:
        """Outcome if those of the `residues` hold."""
        said: dict[str, Value] = {}
        winners: dict[str, PolicyRule] = {}
        allow: dict[str, tuple[Any, PolicyRule]] = {}
        for rule, node in self.candidates:
            if node is True or holds(node):
                for name, value in rule.fields.items():
                    if name not in winners:
                        said[name], winners[name] = value, rule
                for name, value in rule.allow.items():
                    allow.setdefault(name, (value, rule))
        return PolicyOutcome(_settings(said, self.link, self.version), winners, allow)


def _settings(said: Mapping[str, Any], link: str, version: int) -> Settings:
    given = {name: value for name, value in said.items() if value is not None and name != "shape"}
    return Settings(**given, shapes=said.get("shape") or (), link=link, version=version)


def granted(outcome: PolicyOutcome, wish: Wish, shapes: Sequence[PayloadShape] = ()) -> GrantedQos:
    """Grant to a contract that wishes for that; `shapes` are the wish's, read."""
    settings, changes, less = outcome.settings, dict[str, Any](), list[Reduced]()

    def by(name: str, rule: PolicyRule | None = None) -> Reduced:
        rule = rule or outcome.winners.get(name)
        return Reduced(name, rule.name if rule is not None else "")

    if wish.importance is not None:
        (low, high), rule = outcome.allow.get("importance", ((1, settings.importance), None))
        changes["importance"] = value = min(max(wish.importance, low), max(high, settings.importance))
        if value != wish.importance:
            less.append(by("importance", rule))
    for name, wished in (("deadline", wish.deadline), ("max_rate", wish.max_rate), ("max_size", wish.max_size)):
        if wished is not None:
            value, why = _limited(outcome, name, wished)
            changes |= {} if value is None else {name: Rate(value) if name == "max_rate" else value}
            less += [] if why is None else [by(name, why[0])]
    for name, key, wanted in (("shape", "shapes", tuple(shapes) or None), ("replace", "replace", wish.replace)):
        if wanted is not None and wanted != getattr(settings, key):
            allowed, rule = outcome.allow.get(name, (True, None))
            if name in outcome.winners:
                less.append(by(name))
            elif not allowed:
                less.append(by(name, rule))
            else:
                changes[key] = wanted
    if changes:
        settings = Settings(**{name: getattr(settings, name) for name in Settings.__struct_fields__} | changes)
    return GrantedQos(settings, tuple(less))


def _limited(outcome: PolicyOutcome, name: str, wished: float) -> tuple[Any, tuple[PolicyRule | None] | None]:
    """Granted part of a wished limit, None for nothing; and by which policy it is less, None if it is not."""
    most, rule = outcome.allow.get(name, (wished, None))
    value, why = (wished, None) if wished <= most else (most, (rule,))
    if name not in outcome.winners:
        return value, why
    winner = outcome.winners[name]
    said = winner.fields[name]
    if isinstance(said, Rate):
        if said.unit == "objects":
            return None, (winner,)
        said = said.amount
    if not isinstance(said, int | float):  # it forbids the field
        return None, (winner,)
    return (value, why) if value <= said else (None, (winner,))


def shown_value(value: object) -> Any:
    """A field's value as plain data: "none" for what is forbidden, or not there."""
    if isinstance(value, tuple):
        return [str(each) for each in value] or "none"
    if isinstance(value, Rate):
        return with_unit(value.amount, "rate") if value.unit == "bytes" else f"{value.amount:g}/s"
    return "none" if value is None or value == "" else value


def when_shown(effectivity: Effectivity) -> dict[str, Any]:
    """As plain data."""
    told: dict[str, Any] = {}
    for name, at in (("from", effectivity.begin), ("until", effectivity.until)):
        if at is not None:
            told[name] = dt.datetime.fromtimestamp(at, dt.UTC).isoformat()
    if effectivity.hours is not None:
        told["hours"] = "-".join(f"{int(at) // 3600:02}:{int(at) % 3600 // 60:02}" for at in effectivity.hours)
    if effectivity.days is not None:
        told["days"] = [DAYS[day] for day in sorted(effectivity.days)]
    return told
