"""A set of policies: read from a file, asked about a contract, written as a file."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from jbi_pubsub.core.errors import PolicyError
from jbi_pubsub.core.quality import SHAPES, Space, Wish
from jbi_pubsub.core.toml import WHOLE

from .condition import Node, reduced, shown_node, tests_of
from .context import Addresses, CallerFacts, Globs, Index, People, people_of
from .file import MAX_RULES, PolicyDocument, dumped, parse, read
from .policy import FIELDS, Membership, Policy, PolicyRule, Resolution, granted, shown_value
from .policyfile import PolicyReader, SpaceReader

_OTHERS: Final = ("access", "keep")
"""Tables that are not about who matters: no policy manager hands them on."""


def policies_of(document: PolicyDocument, people: People | None = None) -> PolicySet:
    """The policies of a file. What is wrong with them is noted in the document."""
    people = people if people is not None else people_of(document)
    reader, space = PolicyReader(document, people), SpaceReader(document, people)
    rules = [*reader.policies(), *reader.missions()]
    _check_names(document, rules)
    tables = {kind: value for kind, value in document.items() if kind not in _OTHERS and value != []}
    links = space.links()
    bounds = space.space(links)  # before it is asked for errors, of which it may have some
    return PolicySet(
        rules if not document.errors else (),
        people,
        space=bounds,
        links=links,
        tables=tables,
        name=document.name,
    )


def _checked(document: PolicyDocument) -> PolicySet:
    policies = policies_of(document)
    document.check()
    return policies


def _check_names(document: PolicyDocument, rules: Sequence[PolicyRule]) -> None:
    seen: dict[str, PolicyRule] = {}
    for rule in rules:
        other = seen.setdefault(rule.name, rule)
        if other is not rule and rule.name:
            why = f"two policies are called {rule.name!r}, here and in line {other.place.line}"
            document.error(rule.place, why, "Names are what explanations speak of")
    if len(rules) > MAX_RULES:
        document.error(WHOLE, f"{len(rules)} policies, {MAX_RULES} at most", "Use groups and globs")


NAMED_MOST: Final = 20
"""Policies that are named of those that lose, or come near."""


class PolicySet:
    """The policies of an information space. Immutable; any thread may ask."""

    def __init__(
        self,
        rules: Sequence[PolicyRule],
        people: People,
        *,
        space: Space | None = None,
        links: Sequence[Membership] = (),
        tables: Mapping[str, Any] | None = None,
        name: str = "policy.toml",
        version: int = 0,
    ) -> None:
        """`tables`: what a file says, as `write` gives it back."""
        self.rules: Final = tuple(rules)
        self.people: Final = people
        self.space: Final = space or Space()
        self.links: Final = tuple(sorted(links, key=lambda each: (-each.specificity, each.terms.name)))
        self.tables: Final[Mapping[str, Any]] = tables or {}
        self.name: Final = name
        self.version: Final = version
        self._index = Index(self.rules, by_type=True)
        self.asks: Final = frozenset(
            name for rule in self.rules for name in (*rule.keys, *(test.name for test in tests_of(rule.condition)))
        )
        """Dependencies of policies: names of keys and properties."""
        self._timed = [rule.effectivity for rule in self.rules if rule.effectivity is not None]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PolicySet) and self.tables == other.tables

    def __hash__(self) -> int:
        return hash(self.digest)

    @staticmethod
    def read(path: Path) -> PolicySet:
        """The policies of a file. Raises PolicyError."""
        return _checked(read(path)[0])

    @staticmethod
    def parse(text: str, name: str = "policy.toml") -> PolicySet:
        """The policies of a text. Raises PolicyError."""
        return _checked(parse(text, name))

    def write(self) -> str:
        """The text of a file that says the same: `parse(write())` is equal. Access rules are not in it."""
        return dumped(self.tables)

    def with_policy(self, *policies: Policy) -> PolicySet:
        """A set with these as well, instead of those of the same names. Raises PolicyError."""
        new = {policy.name: {"name": policy.name, **policy.said} for policy in policies}
        standing = [table for table in self.tables.get("policy", []) if table["name"] not in new]
        both = [*standing, *new.values()]
        try:
            text = dumped({**self.tables, **({"policy": both} if both else {})})
            text.encode()
        except (TypeError, ValueError) as exc:
            raise PolicyError(
                f"a policy that can't be written: {exc}", hint="Its values are those of a policy file"
            ) from exc
        return self.parse(text, self.name).of_version(self.version)

    def check(self, now: float | None = None) -> list[str]:
        """Doubts about what is allowed, but hardly meant, each a sentence: policies that can never win, contradictions,
        roles without users, times in the past (`now`: seconds since 1970, by default the clock's)."""
        document = parse(self.write(), self.name)
        review(document, policies_of(document).rules, now)
        return [document.told(problem) for problem in document.warnings]

    def of_version(self, version: int) -> PolicySet:
        """The same under a number."""
        return PolicySet(
            self.rules, self.people, space=self.space, links=self.links, tables=self.tables, name=self.name,
            version=version,
        )  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """Equal for sets that say the same in the same words."""
        return hashlib.sha256(self.write().encode()).hexdigest()

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not self.rules and not self.links and self.space == Space()

    def completed(self, facts: CallerFacts) -> CallerFacts:
        """With the groups and the role that the set knows the user by; a role that is claimed counts where it knows
        none."""
        user = facts.user[0]
        role = (self.people.roles[user],) if user in self.people.roles else facts.role
        return replace(facts, group=self.people.groups_of(user), role=role)

    def resolve(self, facts: CallerFacts, *, now: float) -> Resolution:
        """Resolve what applies to a contract at a time (seconds since 1970)."""
        facts = self.completed(facts)
        found: dict[PolicyRule, Node] = {}
        for rule in self._index.about(facts):
            if rule not in found and not rule.miss(facts) and rule.is_on(now):
                node = rule.condition if rule.condition is True else reduced(rule.condition, facts)
                if node is not False:
                    found[rule] = node
        ranked = sorted(found.items(), key=lambda pair: pair[0].rank)
        link = next((each.terms.name for each in self.links if reduced(each.members, facts) is True), "")
        return Resolution(facts, tuple(ranked), link, self.version)

    def next_change(self, now: float) -> float:
        """When effectivity may change what applies; inf: never."""
        return min((each.next_change(now) for each in self._timed), default=float("inf"))

    def explained(
        self,
        facts: CallerFacts,
        *,
        now: float,
        holds: Callable[[Node], bool] = lambda _node: False,
        wish: Wish | None = None,
    ) -> dict[str, Any]:
        """A resolution as plain data: for each field its value, the winner, and the losers with the reason; policies
        that come near, with the key by which they do not apply; `if`: of what is to be decided yet."""
        resolution = self.resolve(facts, now=now)
        outcome = resolution.outcome(holds)
        applying = [rule for rule, node in resolution.candidates if node is True or holds(node)]
        fields = {}
        for name in FIELDS:
            winner = outcome.winners.get(name)
            others = [rule for rule in applying if name in rule.fields and rule is not winner]
            fields[name] = {
                "value": shown_value(getattr(outcome.settings, "shapes" if name == "shape" else name)),
                "by": winner.name if winner is not None else "",
                "losers": [
                    {"policy": rule.name, "value": shown_value(rule.fields[name]), "why": rule.behind(winner)}
                    for rule in others[:NAMED_MOST]
                    if winner is not None
                ],
            }
        given = granted(outcome, wish) if wish is not None else None
        return {
            "version": self.version,
            "user": facts.user[0],
            "groups": list(resolution.facts.group),
            "role": next(iter(resolution.facts.role), ""),
            "link": resolution.link,
            "fields": fields,
            "if": [
                {"policy": rule.name, "condition": shown_node(node), "holds": holds(node)}
                for rule, node in resolution.candidates
                if node is not True
            ][:NAMED_MOST],
            "near": self._near(resolution, now)[:NAMED_MOST],
            "reduced": [[each.field, each.policy] for each in given.reduced] if given is not None else [],
        }

    def _near(self, resolution: Resolution, now: float) -> list[dict[str, str]]:
        """Those that do not apply, by the last of their keys, or by time."""
        applying = {rule for rule, _ in resolution.candidates}
        order = ["user", "group", "role", "client", "component", "address", "type", "version", "action", "delivery"]
        found = []
        for rule in self.rules:
            if rule in applying:
                continue
            miss = rule.miss(resolution.facts)
            why = miss or ("when" if rule.is_on(now) else "its time")
            found.append((order.index(miss) if miss in order else 99, rule.name, why))
        return [{"policy": name, "why": why} for _, name, why in sorted(found, key=lambda each: (-each[0], each[1]))]


NOTHING: Final = PolicySet((), People({}, {}, {}))
"""Without policies: everybody has what DEFAULT says."""


PAIRS_MOST: Final = 200_000
"""Pairs of policies that are compared to find those that can never win, or contradict each other; where they have long
lists of texts, of ten pairs of those."""

PILLOW_SHAPES: Final = frozenset(name for name, rule in SHAPES.items() if rule.picture)


def review(document: PolicyDocument, rules: Sequence[PolicyRule], now: float | None = None) -> None:
    """Note what is allowed, but hardly meant: policies that can never win, contradictions at equal rank, times in the
    past, shapes that this machine can't do."""
    now = time.time() if now is None else now
    for rule in rules:
        if rule.effectivity is not None and rule.effectivity.until is not None and rule.effectivity.until <= now:
            document.warn(rule.place, f"policy {rule.name!r}: its time is over", "Remove it, or set a new until")
    _review_shapes(document, rules)
    index = Index(rules, by_type=True)
    compared = 0
    for rule in rules:
        left = set(rule.fields) | {f"allow {name}" for name in rule.allow}
        for other in _near(index, rule):
            if other is rule:
                continue
            compared += 1 + _texts_of(rule) * _texts_of(other) // 10
            if compared > PAIRS_MOST:
                document.warn(rule.place, "policies behind this one are not compared with the others")
                return
            if other.rank < rule.rank and other.covers(rule):
                left -= {*other.fields, *(f"allow {name}" for name in other.allow)}
            if _contradicts(rule, other):
                names = ", ".join(
                    name for name in rule.fields if rule.fields[name] != other.fields.get(name, rule.fields[name])
                )
                document.warn(
                    rule.place,
                    f"policies {rule.name!r} and {other.name!r} (line {other.place.line}) contradict each other"
                    f" in {names}: the second wins by importance or name alone",
                    "Give one of them a precedence",
                )
        if not left and (rule.fields or rule.allow):
            document.warn(rule.place, f"policy {rule.name!r} can never win: others say all that it says, before it")


def _texts_of(rule: PolicyRule) -> int:
    """Number of texts that its context has."""
    return sum(len(matcher.said) for matcher in (*rule.keys.values(), *rule.attributes.values()))


def _contradicts(rule: PolicyRule, winner: PolicyRule) -> bool:
    """Whether they are of one rank and context, and do not say the same; the second one wins."""
    return (
        winner.rank[:2] == rule.rank[:2]
        and winner.rank < rule.rank
        and winner.keys.keys() == rule.keys.keys()
        and winner.attributes.keys() == rule.attributes.keys()
        and winner.condition == rule.condition
        and winner.effectivity == rule.effectivity
        and any(name in winner.fields and winner.fields[name] != value for name, value in rule.fields.items())
        and all(_meet(matcher, winner.keys[key]) for key, matcher in rule.keys.items())
        and all(_meet(matcher, winner.attributes[key]) for key, matcher in rule.attributes.items())
    )


def _meet(one: Globs | Addresses, other: Globs | Addresses) -> bool:
    """Whether it is certain that something is matched by both."""
    return (
        one.covers(other)  # type: ignore[arg-type]  # of one key, of one class
        or other.covers(one)  # type: ignore[arg-type]  # the same
        or not set(one.said).isdisjoint(other.said)
    )


def _near(index: Index[PolicyRule], rule: PolicyRule) -> Iterable[PolicyRule]:
    """Policies that may cover one, or share its context, each once: those that an index of them all finds by its first
    texts."""
    first = {key: matcher.said for key, matcher in rule.keys.items()}
    users, types = first.get("user", ("",)), first.get("type", ("",))
    addresses = [text.partition("/")[0] for text in first.get("address", ("",))]
    groups, roles = first.get("group", ()), first.get("role", ())
    found: dict[PolicyRule, None] = {}
    for user, type_, address in itertools.islice(itertools.product(users, types, addresses), 64):
        facts = CallerFacts((user,), groups, roles, ("",), ("",), (address,), type=(type_,))
        found |= dict.fromkeys(index.about(facts))
    return found


def _review_shapes(document: PolicyDocument, rules: Iterable[PolicyRule]) -> None:
    if importlib.util.find_spec("PIL") is not None:
        return
    for rule in rules:
        names = [shape.name for shape in rule.fields.get("shape") or () if shape.name in PILLOW_SHAPES]  # type: ignore[union-attr]  # the field's type
        if names:
            what = f"policy {rule.name!r}: {names[0]} needs Pillow, which is not installed here"
            document.warn(
                rule.place,
                what,
                "pip install 'jbi-pubsub[qos]' wherever delegates run; without it payloads pass as they are",
            )
            return
