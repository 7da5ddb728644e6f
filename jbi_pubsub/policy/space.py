"""The information space as its manager sees it (QED, section III, ISQM): versions of the policies, who follows them,
and how links that several local managers share are divided between those. Pure: `now` is an argument.

Rules:
- A change is a new version; versions never change, and going back makes a new one that says what an old one said.
- A manager has an epoch, which only goes up when another manager takes over. A local manager follows the one it has; it
  takes no earlier version, and no other manager's unless its epoch is higher, or it says the same.
- What may be in force somewhere counts as used until the one who has it has said otherwise. So shares are lowered first
  and raised when that is acknowledged: in sum they never exceed the rate of the link.
- Whoever is away goes on with what it has; its shares are kept for it until it is known to be gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from jbi_pubsub.core.errors import OversizeError, PolicyError
from jbi_pubsub.core.quality import LEVELS, QUANTITY_MOST, LinkTerms, Strategy

from .file import parse
from .policyset import NOTHING, PolicySet, policies_of
from .writing import VALUE_MOST, changed, value_of

SNAPSHOT_BYTES: Final = 1 << 20
"""Bytes of a set's text: what is pushed goes to everybody, whole."""
HISTORY_MOST: Final = 1_000
"""Versions that are kept; of more the oldest are forgotten."""
WHY_MOST: Final = 500
"""Characters of a reason."""
MEMBERS_MOST: Final = 1_000
"""Local managers that follow."""
LINKS_TOLD: Final = 1_000
TYPES_TOLD: Final = 100
"""Links and types of a report."""

IDLE_PART: Final = 0.05
"""Share of a link kept for a local manager without demand, so that it can start; half of the link for all at most."""
HYSTERESIS: Final = 0.1
"""Shares that would change by less are left alone."""
NEWCOMER_SECONDS: Final = 1.0
"""Seconds that one waits for others to make room; then it begins with NEWCOMER_PART, whoever does not answer."""
NEWCOMER_PART: Final = 0.01
GROWTH: Final = 1.25
"""Factor by which the use of somebody who has nothing waiting may grow until the next report."""

Five = tuple[float, float, float, float, float]
Short = Annotated[str, msgspec.Meta(max_length=200)]
EPOCH_MOST: Final = 1 << 31


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One of the sets that were in force: since when (seconds since 1970), by whom, why, and what it says."""

    version: int
    at: float
    who: str
    why: str
    toml: str


class PolicyStanding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which set somebody has: the manager ("" for none) and its epoch, the number, the digest."""

    manager: Short = ""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MOST)] = 0
    version: Annotated[int, msgspec.Meta(ge=0)] = 0
    digest: Short = ""


class PolicyNews(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """News for a local manager: a set as text (None: the one that it has), and its shares of links, bytes a second by
    name. `number` counts what it was sent."""

    number: int
    standing: PolicyStanding
    rates: Annotated[dict[Short, float], msgspec.Meta(max_length=LINKS_TOLD)]
    toml: str | None = None


class LinkUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Use of a link, by a local manager: bytes a second that it may send, that it sends, and that it would send at
    importance 1 to 5 (math.inf: as much as goes); seconds there and back."""

    rate: float = 0.0
    used: float = 0.0
    demand: Five = (0.0, 0.0, 0.0, 0.0, 0.0)
    trip: float = 0.0


class LqmReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Report of what is in force at a local manager, and what was delivered there: `number` of the news that it
    follows, why it does not follow (`fault`), its links, contracts by importance, and per type objects a second."""

    number: int
    standing: PolicyStanding
    fault: Annotated[str, msgspec.Meta(max_length=1_000)] = ""
    links: Annotated[dict[Short, LinkUse], msgspec.Meta(max_length=LINKS_TOLD)] = {}
    contracts: Annotated[dict[Short, int], msgspec.Meta(max_length=LEVELS)] = {}
    types: Annotated[dict[Short, float], msgspec.Meta(max_length=TYPES_TOLD)] = {}


def refusal(mine: PolicyStanding, offered: PolicyStanding) -> str:
    """Why whoever has `mine` does not take what is `offered`; "": it does."""
    if not mine.manager or offered.epoch > mine.epoch:
        return ""
    if offered.epoch < mine.epoch:
        return f"epoch {offered.epoch} is over, manager {mine.manager[:8]} has epoch {mine.epoch}"
    if offered.manager != mine.manager and (offered.version, offered.digest) != (mine.version, mine.digest):
        return f"manager {mine.manager[:8]} is followed, of the same epoch {mine.epoch}"
    if offered.version < mine.version:
        return f"version {offered.version} is older than {mine.version}, which is in force"
    if offered.version == mine.version and offered.digest != mine.digest:
        return f"version {offered.version} says something else here"
    return ""


# -- division -----------------------------------------------------------------------------------------------------


def divide(
    rate: float,
    demands: Mapping[str, Sequence[float]],
    strategy: Strategy,
    min_share: Sequence[float] = (0.0,) * LEVELS,
) -> dict[str, float]:
    """Shares of a link by name, from what each would send at importance 1 to 5: `rate` in sum, never more.

    A little for everybody; then guaranteed parts of levels; then by the strategy; within a level by water-filling, so
    that nobody gets more than he wants while another one wants more. What nobody wants is spread evenly.
    """
    if not demands:
        return {}
    base = rate * min(IDLE_PART, 0.5 / len(demands))
    wants = {name: _behind(base, demand, rate) for name, demand in demands.items()}
    got = dict.fromkeys(demands, base)
    left = rate - base * len(demands)
    totals = [min(rate, sum(want[level] for want in wants.values())) for level in range(LEVELS)]
    for level, part in enumerate(_by_level(left, totals, strategy, [share * rate for share in min_share])):
        filled = _filled(part, [want[level] for want in wants.values()], [1.0] * len(wants))
        for name, amount in zip(wants, filled, strict=True):
            got[name] += amount
    unused = max(0.0, rate - sum(got.values())) / len(got)
    sums = rate / max(rate, math.fsum(got.values()) + unused * len(got))  # what sums of floating point numbers leave
    return {name: (amount + unused) * sums for name, amount in got.items()}


def _behind(base: float, demand: Sequence[float], most: float) -> list[float]:
    """Demand beside a base, which serves the most important first."""
    left = []
    for wanted in reversed(demand):
        wanted = min(max(wanted, 0.0), most) if wanted == wanted else 0.0
        served = min(base, wanted)
        base -= served
        left.append(wanted - served)
    return left[::-1]


def _by_level(amount: float, totals: Sequence[float], strategy: Strategy, guaranteed: Sequence[float]) -> list[float]:
    parts = [0.0] * LEVELS
    for level in reversed(range(LEVELS)):
        parts[level] = min(amount, totals[level], guaranteed[level])
        amount -= parts[level]
    wants = [total - part for total, part in zip(totals, parts, strict=True)]
    if strategy.name == "strict":
        more = [0.0] * LEVELS
        for level in reversed(range(LEVELS)):
            more[level] = min(amount, wants[level])
            amount -= more[level]
    else:
        more = _filled(amount, wants, strategy.link)
    return [part + added for part, added in zip(parts, more, strict=True)]


def _filled(amount: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """An amount spread by weights, to nobody more than he wants (water-filling; max-min fairness)."""
    got = [0.0] * len(wants)
    order = sorted((at for at in range(len(wants)) if wants[at] > 0), key=lambda at: wants[at] / weights[at])
    weight = math.fsum(weights[at] for at in order)
    for at in order:
        got[at] = min(wants[at], max(0.0, amount) * weights[at] / weight if weight > 0 else 0.0)
        amount -= got[at]
        weight -= weights[at]
    return got


# -- steering -----------------------------------------------------------------------------------------------------


def with_value(text: str, key: str, value: str) -> str:
    """The text of a file in which a key says something else: `space.strategy`, `role.USER`, `policy.NAME.importance`,
    `link.NAME.rate`, `preference.NAME.deadline`, `mission."NAME".active`. Raises PolicyError."""
    if max(len(key), len(value)) > VALUE_MOST:
        raise PolicyError(f"a key or value of more than {VALUE_MOST} characters", hint="Use `jbi policy apply`")
    return changed(parse(text, "policy.toml"), key, value_of(key, value))


def read_set(text: str, name: str, version: int = 0) -> PolicySet:
    """The policies of a text, access rules left out. Raises PolicyError; OversizeError where it could not be pushed."""
    document = parse(text, name)
    policies = policies_of(document)
    document.check()
    size = len(policies.write().encode())
    if size > SNAPSHOT_BYTES:
        raise OversizeError(
            f"{name}: policies of {size} bytes, {SNAPSHOT_BYTES} at most", hint="Use groups, globs and templates"
        )
    return policies.of_version(version)


# -- the manager --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposal:
    """A version that is not in force yet, and the set that its text is."""

    version: Version
    policies: PolicySet


@dataclass(eq=False)
class LocalManagerEntry:
    """A local manager that follows. `ceilings`: what it may be using of each link, at most; `shares`: what it was told
    last; both bytes a second. `away_since`: None while it is connected."""

    component: str
    joined_at: float
    ceilings: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    number: int = 0
    """Number of the news that it was sent last."""
    heard: LqmReport = field(default_factory=lambda: LqmReport(0, PolicyStanding()))
    heard_at: float = -math.inf
    away_since: float | None = None
    told: int = 0
    """The version that it was sent last."""
    is_due: bool = True

    @property
    def is_settled(self) -> bool:
        """Whether it has acknowledged what it was sent last."""
        return self.heard.number >= self.number


class InformationSpaceManager:
    """See the module. The owner's lock covers it; what proposes takes its time, and only needs that nobody else changes
    anything meanwhile."""

    def __init__(self, manager: str, epoch: int = 1, versions: Sequence[Version] = ()) -> None:
        """`versions` that were kept, the oldest first. Raises PolicyError when the last can't be used any more."""
        self.manager: Final = manager
        self.epoch = epoch
        self.versions = list(versions)[-HISTORY_MOST:]
        self.policies = NOTHING
        self.members: dict[str, LocalManagerEntry] = {}
        self._divided: dict[str, float] = {}
        """The rate that each link was divided by."""
        if self.versions:
            last = self.versions[-1]
            self.policies = read_set(last.toml, f"version {last.version}", last.version)

    @property
    def standing(self) -> PolicyStanding:
        """Standing of what is in force."""
        return PolicyStanding(self.manager, self.epoch, self.policies.version, self.policies.digest)

    # -- versions -----------------------------------------------------------------------------------------------

    def proposed(self, toml: str, who: str, why: str, now: float) -> Proposal | None:
        """The version that would say that; None: what is in force says it. `take` comes next, once it is on disk.
        Raises PolicyError, OversizeError."""
        policies = read_set(toml, "policy.toml")
        if self.versions and policies == self.policies:
            return None
        number = self.policies.version + 1
        version = Version(version=number, at=now, who=who[:200], why=why[:WHY_MOST], toml=policies.write())
        return Proposal(version, policies.of_version(number))

    def proposed_value(self, key: str, value: str, who: str, why: str, now: float) -> Proposal | None:
        """The same with one key changed (see with_value)."""
        try:
            text = with_value(self.policies.write(), key, value)
            return self.proposed(text, who, why or f"{key} = {value}"[:WHY_MOST], now)
        except PolicyError as exc:
            if "line" not in exc.facts:
                raise
            what = exc.message.partition(": ")[2] or exc.message  # where it is in a text that nobody has written
            raise PolicyError(f"{key[:200]} = {value[:200]!r}: {what}", hint=exc.hint) from exc

    def proposed_again(self, version: int, who: str, why: str, now: float) -> Proposal | None:
        """Proposal of what an earlier version said. Raises PolicyError."""
        return self.proposed(self.version(version).toml, who, why or f"back to version {version}", now)

    def version(self, number: int) -> Version:
        """One that is kept; 0: the one in force. Raises PolicyError."""
        wanted = number or self.policies.version
        for each in self.versions:
            if each.version == wanted:
                return each
        kept = f"Kept are {self.versions[0].version} to {self.versions[-1].version}" if self.versions else "None is"
        raise PolicyError(f"no version {number}", hint=kept)

    def take(self, proposal: Proposal) -> None:
        """Put a proposal in force from now on."""
        self.policies = proposal.policies
        self.versions = [*self.versions, proposal.version][-HISTORY_MOST:]
        for member in self.members.values():
            member.is_due = True

    # -- local managers -----------------------------------------------------------------------------------------

    def join(self, lqm: str, component: str, standing: PolicyStanding, rates: Mapping[str, float], now: float) -> None:
        """One comes, or comes again, with what it has. Raises PolicyError when it follows somebody else, or has later
        policies; OversizeError when there are too many."""
        why = refusal(standing, self.standing)
        if why:
            raise PolicyError(
                f"{component}: {why}",
                hint="Stop one of the managers, or start the one that is to have its say with --take-over",
            )
        member = self.members.get(lqm)
        if member is None:
            if len(self.members) >= MEMBERS_MOST:
                raise OversizeError(f"{MEMBERS_MOST} local managers follow already", hint="Divide the space")
            member = self.members[lqm] = LocalManagerEntry(component, now)
        told = list(rates.items())[:LINKS_TOLD]
        known = {name: min(rate, QUANTITY_MOST) for name, rate in told if 0 < rate < math.inf}  # sums stay numbers
        member.component, member.joined_at, member.away_since = component, now, None
        member.ceilings = {name: max(known.get(name, 0.0), member.ceilings.get(name, 0.0)) for name in
                           {*known, *member.ceilings}}  # fmt: skip
        member.shares = dict(known)
        member.heard = LqmReport(0, standing)
        member.number, member.told, member.is_due = 0, 0, True

    def lost(self, lqm: str, now: float) -> None:
        """Its connection is over; it goes on with what it has."""
        member = self.members.get(lqm)
        if member is not None and member.away_since is None:
            member.away_since = now

    def is_away(self, lqm: str) -> bool:
        """Whether one has followed, and is not connected."""
        member = self.members.get(lqm)
        return member is not None and member.away_since is not None

    def gone(self, lqm: str) -> None:
        """Note that one is no more: what it had is free."""
        self.members.pop(lqm, None)

    def heard(self, lqm: str, report: LqmReport, now: float) -> bool:
        """Take the report of one; whether it has acknowledged something, so that others may get more."""
        member = self.members.get(lqm)
        if member is None:
            return False
        was_settled = member.is_settled
        member.heard, member.heard_at = report, now
        if member.is_settled and not was_settled:
            member.ceilings = dict(member.shares)
            return True
        return False

    def news(self, lqm: str) -> PolicyNews | None:
        """News to be sent to one now; None: nothing."""
        member = self.members.get(lqm)
        if member is None or not member.is_due or member.away_since is not None:
            return None
        member.is_due = False
        member.number += 1
        for name, rate in member.shares.items():
            member.ceilings[name] = max(rate, member.ceilings.get(name, 0.0))
        version = self.policies.version
        text = None if member.told == version else self.version(version).toml
        member.told = version
        return PolicyNews(member.number, self.standing, dict(member.shares), text)

    # -- shared links -------------------------------------------------------------------------------------------

    def share_out(self, now: float) -> bool:
        """Divide all links anew, by what was reported; whether somebody is to be told."""
        links = {terms.name: terms for terms in self.policies.space.links if terms.rate is not None}
        self._divided = {name: rate for name, rate in self._divided.items() if name in links}
        for member in self.members.values():
            for name in [name for name in member.shares if name not in links]:
                del member.shares[name]
        for terms in links.values():
            self._share_out(terms, terms.rate or 0.0, now)
        return any(member.is_due for member in self.members.values())

    def _share_out(self, terms: LinkTerms, rate: float, now: float) -> None:
        name = terms.name
        here = {lqm: member for lqm, member in self.members.items() if member.away_since is None}
        kept = math.fsum(m.ceilings.get(name, 0.0) for m in self.members.values() if m.away_since is not None)
        rest = max(rate - kept, rate * IDLE_PART)  # who is here is not cut off by who is away, and has too much
        demands = {lqm: _demand(member.heard.links.get(name)) for lqm, member in here.items()}
        targets = divide(rest, demands, self.policies.space.strategy, terms.min_share)
        if self._divided.get(name) == rate and all(
            abs(targets[lqm] - member.shares.get(name, 0.0)) <= HYSTERESIS * member.shares.get(name, 0.0)
            for lqm, member in here.items()
        ):
            return
        self._divided[name] = rate
        free = rate - math.fsum(member.ceilings.get(name, 0.0) for member in self.members.values())
        for lqm, member in here.items():
            if not member.is_settled and name in member.shares and member.shares[name] <= targets[lqm]:
                continue  # it may have more once it has said that it has what it was told
            most = max(0.0, member.ceilings.get(name, 0.0) + max(0.0, free))
            share = min(targets[lqm], most)
            if name not in member.shares and share < NEWCOMER_PART * rate:
                if now - member.joined_at < NEWCOMER_SECONDS:
                    self._divided.pop(name, None)  # looked at again with the next acknowledgement
                    continue
                share = NEWCOMER_PART * rate
            free -= max(0.0, share - member.ceilings.get(name, 0.0))
            if share < targets[lqm]:
                self._divided.pop(name, None)  # there is more to come
            if share != member.shares.get(name):
                member.shares[name] = share
                member.is_due = True

    def waits_for_room(self, lqm: str) -> bool:
        """Whether one is not told anything yet, as others have to make room for it first."""
        member = self.members[lqm]
        return any(t.rate is not None and t.name not in member.shares for t in self.policies.space.links)

    # -- for people ---------------------------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """Plain data."""
        return {
            "manager": self.manager,
            "epoch": self.epoch,
            "version": self.policies.version,
            "digest": self.policies.digest[:16],
            "strategy": self.policies.space.strategy.name,
            "shaping": self.policies.space.shaping,
            "links": {
                terms.name: {"rate": terms.rate, "shares": self._shares(terms.name)}
                for terms in self.policies.space.links
            },
            "local": [
                {
                    "id": lqm,
                    "component": member.component,
                    "version": member.heard.standing.version,
                    "fault": member.heard.fault,
                    "heard": None if member.heard_at == -math.inf else round(now - member.heard_at, 1),
                    "away": None if member.away_since is None else round(now - member.away_since, 1),
                    "contracts": dict(member.heard.contracts),
                    "links": {name: _told(use) for name, use in member.heard.links.items()},
                    "types": {name: rate for name, rate in member.heard.types.items() if math.isfinite(rate)},
                }
                for lqm, member in self.members.items()
            ],
        }

    def _shares(self, name: str) -> dict[str, float]:
        return {lqm: round(member.shares[name], 1) for lqm, member in self.members.items() if name in member.shares}


def _told(use: LinkUse) -> dict[str, Any]:
    """Plain data, as JSON can say it: None for as much as goes."""
    demand = [round(wanted, 1) if math.isfinite(wanted) else None for wanted in use.demand]
    return {
        **{name: value if math.isfinite(value := getattr(use, name)) else None for name in ("rate", "used", "trip")},
        "demand": demand,
    }


def _demand(use: LinkUse | None) -> Five:
    """Demand of somebody, with room to grow; nothing, as far as he has not said."""
    if use is None:
        return (0.0, 0.0, 0.0, 0.0, 0.0)
    a, b, c, d, e = (wanted * GROWTH for wanted in use.demand)
    return a, b, c, d, e
