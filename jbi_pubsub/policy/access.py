"""Access rules and the decisions that they make. Pure; compiled once, read by any thread.

The rule of rules: **what one rule allows is allowed, unless another one denies it**; where there is a rule at all, what
none allows is denied. The order of rules has no meaning. With `where` a rule is about some objects of a type: who is
allowed by several gets what each of them lets through, and nothing that one withholds.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jbi_pubsub.core.access import ALLOWED, Action, Decision, Namespaces, Subject
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.toml import TextPlace, Where
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.core.xpath.narrowing import joined, negated

from .context import (
    ACTIONS,
    KEYS,
    Addresses,
    CallerFacts,
    Globs,
    Index,
    People,
    actions_of,
    are_covered,
    host_of,
    matchers,
    people_of,
)
from .file import QOS_KINDS, PolicyDocument, flag, namespaces_of, nearest, tables_in

CONTEXT: Final = ("user", "group", "role", "client", "component", "address", "type", "version")
"""Keys of the vocabulary that are known when access is asked, besides the action."""
_LATER: Final = tuple(key for key in KEYS if key not in CONTEXT and key != "action")
OWN: Final = ("recipients", "where", "namespaces", "allow", "audit")
"""Keys that only access rules have."""

ABOUT_TYPES: Final = frozenset(["publish", "subscribe", "query", "persist", "mail", "types", "status"])
"""Actions that may be about a type; `connect` is about none, and a rule that names one allows it as well."""
NARROWED: Final = frozenset(["subscribe", "query"])
"""Actions that `where` narrows."""

KNOWN_MOST: Final = 8192
"""Decisions that are remembered; beyond that all are forgotten."""
QUESTION_MOST: Final = 2_000
"""Characters of a question that is remembered: a caller may ask about names of any length."""
REASONS_MOST: Final = 20
"""Rules that are named of those that come near."""
PAIRS_MOST: Final = 300_000
"""Pairs of rules that are compared to find those without effect: about half a second."""


ALL, NO_VERSION, NO_TYPE = "all", "no version", "no type"
"""Knowledge of a subject: its type and version; its type; nothing, as it may come to be any."""
_WITHOUT: Final = {ALL: (), NO_VERSION: ("version",), NO_TYPE: ("type", "version")}


@dataclass(frozen=True, eq=False, slots=True)
class AccessRule:
    """One `[[access]]`."""

    name: str
    """policy.toml:17"""
    place: TextPlace
    allow: bool
    actions: frozenset[str]
    keys: Mapping[str, Globs | Addresses]
    where: str = ""
    namespaces: Namespaces = ()
    audit: bool = False
    _asked: Mapping[str, tuple[tuple[str, Globs | Addresses], ...]] = field(init=False)
    """The keys that count, by what is known."""

    def __post_init__(self) -> None:
        asked = {
            known: tuple((key, matcher) for key, matcher in self.keys.items() if key not in without)
            for known, without in _WITHOUT.items()
        }
        object.__setattr__(self, "_asked", asked)

    def miss(self, facts: CallerFacts, known: str = ALL) -> str:
        """The first key that does not hold; "": the rule applies. `known`: of the subject."""
        for key, matcher in self._asked[known]:
            if not matcher.any_of(getattr(facts, key)):
                return key
        return ""

    def meaning(self, *, loose: bool = False) -> tuple[object, ...]:
        """Equal for rules that say the same; `loose`: of the type apart."""
        asked = self._asked[NO_TYPE if loose else ALL]
        keys = tuple(sorted((key, matcher.said) for key, matcher in asked))
        return self.allow, keys, self.where, self.namespaces, self.audit

    @property
    def is_of_strangers(self) -> bool:
        """Whether it is about those alone who are not authenticated."""
        user = self.keys.get("user")
        return user is not None and user.said == ("",)

    @property
    def is_of_users(self) -> bool:
        """Whether it says which users it is about."""
        return not self.is_of_strangers and not self.keys.keys().isdisjoint(("user", "group", "role"))

    def covers(self, other: AccessRule) -> bool:
        """Whether whatever the other one is about is certain to be what this one is about."""
        return not self.where and self.actions >= other.actions and are_covered(other.keys, self.keys)

    def shown(self) -> dict[str, Any]:
        """Plain data."""
        every = {"action": sorted(self.actions)} if len(self.actions) < len(ACTIONS) else {}
        told: dict[str, Any] = {"rule": self.name, "allow": self.allow, **every}
        told |= {key: list(matcher.said) for key, matcher in self.keys.items()}
        told |= {"where": self.where} if self.where else {}
        told |= {"namespaces": dict(self.namespaces)} if self.namespaces else {}
        return told | ({"audit": True} if self.audit else {})


class RuleSide:
    """The rules of one action. `loose`: where the type does not count, each meaning once."""

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        allow = [rule for rule in rules if rule.allow]
        self.denies = Index((rule for rule in rules if not rule.allow), by_type=True)
        self.allows = Index(allow, by_type=True)
        self.loose = Index({rule.meaning(loose=True): rule for rule in reversed(allow)}.values(), by_type=False)


class AccessRules:
    """The rules of one file. Without one everything is allowed."""

    def __init__(self, rules: Sequence[AccessRule], people: People) -> None:
        self.rules: Final = tuple(rules)
        self.people: Final = people
        self._sides = {action: RuleSide([rule for rule in rules if action in rule.actions]) for action in ACTIONS}
        self._known: Cache[tuple[object, ...], Decision] = Cache(KNOWN_MOST)

    def decide(self, caller: Caller, action: Action, subject: Subject, *, component: str) -> Decision:
        """Whether the caller may do that at that component. Remembered."""
        if not self.rules:
            return ALLOWED
        user = "" if caller.claimed else caller.user
        host = host_of(caller.address)
        question = (user, host, caller.client, component, action, subject)
        known = self._known.get(question)
        if known is None:
            facts = self._facts(user, host, caller.client, component, subject)
            known = self._decide(facts, action, subject)
            if sum(map(len, (*question[:-2], subject.type, subject.version, subject.name))) <= QUESTION_MOST:
                self._known[question] = known
        return known

    def explain(self, caller: Caller, action: Action, subject: Subject, *, component: str) -> dict[str, Any]:
        """A decision as plain data: `reasons` are the rules that apply, denials before others, then those that come
        nearest with the key by which they do not (`miss`); `missed` is how many rules about the action do not apply."""
        decision = self.decide(caller, action, subject, component=component)
        user = "" if caller.claimed else caller.user
        facts = self._facts(user, host_of(caller.address), caller.client, component, subject)
        known, order = _known_of(action, subject), [*OWN, *CONTEXT]
        asked = (rule for rule in self.rules if action in rule.actions)
        reasons = [(rule, rule.miss(facts, known if rule.allow else ALL)) for rule in asked]
        reasons.sort(key=lambda r: (r[1] != "", r[0].allow, -order.index(r[1]) if r[1] else 0))
        return {
            "allowed": decision.allowed,
            "rule": decision.rule,
            "where": decision.where,
            "groups": list(self.people.groups_of(user)),
            "role": self.people.roles.get(user, ""),
            "reasons": [{**rule.shown(), "miss": miss} for rule, miss in reasons[:REASONS_MOST]],
            "missed": sum(miss != "" for _, miss in reasons),
        }

    def _facts(self, user: str, host: str, client: str, component: str, subject: Subject) -> CallerFacts:
        role = (self.people.roles[user],) if user in self.people.roles else ()
        who = (user,), self.people.groups_of(user), role, (client,), (component,), (host,)
        return CallerFacts(
            *who, type=(subject.type,), version=(subject.version,), recipients=(subject.name.casefold(),)
        )

    def _decide(self, facts: CallerFacts, action: Action, subject: Subject) -> Decision:
        side = self._sides[action]
        hiding: list[AccessRule] = []
        for rule in side.denies.about(facts):
            if not rule.miss(facts):
                if not (rule.where and action in NARROWED):
                    return Decision(False, rule.name, audit=True)
                hiding.append(rule)
        known = _known_of(action, subject)
        showing: list[AccessRule] = []
        for rule in (side.loose if known == NO_TYPE else side.allows).about(facts):
            if not rule.miss(facts, known):
                showing.append(rule)
                if not (rule.where and action in NARROWED):
                    showing = [rule]
                    break
        if not showing:
            return Decision(False)
        return _allowed_by(showing[:1]) if subject.some else self._narrowed(showing, hiding)

    def _narrowed(self, showing: Sequence[AccessRule], hiding: Sequence[AccessRule]) -> Decision:
        parts = []
        if all(rule.where for rule in showing):
            parts.append(joined([(rule.where, rule.namespaces) for rule in showing], "or"))
        parts += [negated((rule.where, rule.namespaces)) for rule in hiding]
        where, namespaces = joined(parts, "and") if parts else ("", ())
        return _allowed_by([*showing, *hiding], where, namespaces)


def _known_of(action: Action, subject: Subject) -> str:
    if action == "connect" or (subject.some and not subject.type):
        return NO_TYPE
    return NO_VERSION if subject.some else ALL


def _allowed_by(rules: Sequence[AccessRule], where: str = "", namespaces: Namespaces = ()) -> Decision:
    first, *others = sorted(set(rules), key=lambda rule: rule.place)
    name = ",".join([first.name, *(str(rule.place.line) for rule in others)])
    return Decision(True, name, where, namespaces, audit=any(rule.audit for rule in rules))


def access_rules(document: PolicyDocument) -> AccessRules:
    """The rules of a file. What is wrong with them is noted in the document."""
    people = people_of(document)
    rules = [_rule(document, table, at, people) for table, at in tables_in(document, "access", what="rules")]
    return AccessRules(rules, people)


def _rule(document: PolicyDocument, table: Mapping[str, Any], at: Where, people: People) -> AccessRule:
    place = document.key(at)
    for key in table:
        if key in _LATER:
            document.error(
                document.key((*at, key)),
                f"{key} is not known when access is asked",
                "Mail is an action: action = 'mail'",
            )
        elif key not in (*CONTEXT, "action", *OWN):
            known = (*CONTEXT, "action", *OWN)
            document.error(document.key((*at, key)), f"unknown key {key!r}", nearest(key, known))
    actions = actions_of(document, table, at)
    keys = matchers(document, table, at, people, CONTEXT)
    if "recipients" in table:
        domains = matchers(document, table, at, people, ("recipients",)).get("recipients")
        if actions != {"mail"}:
            message = "recipients is for action mail alone"
            document.error(document.key((*at, "recipients")), message, "Make a rule of its own with action = 'mail'")
        elif domains is not None:
            keys["recipients"] = Globs(text.casefold() for text in domains.said)
    if "type" in keys and not actions & (ABOUT_TYPES | {"connect"}):
        which = ", ".join(sorted(actions))
        document.warn(document.key((*at, "type")), f"never applies: {which} is about no type", "Leave type out")
    where, namespaces = _where(document, table, at, actions)
    return AccessRule(
        name=f"{document.name}:{place.line}",
        place=place,
        allow=flag(document, table, at, "allow", default=True),
        actions=actions,
        keys=keys,
        where=where,
        namespaces=namespaces,
        audit=flag(document, table, at, "audit", default=False),
    )


def _where(
    document: PolicyDocument, table: Mapping[str, Any], at: Where, actions: frozenset[str]
) -> tuple[str, Namespaces]:
    spaces = namespaces_of(document, table, at)
    where = table.get("where", "")
    place = document.value((*at, "where"))
    if not isinstance(where, str):
        document.error(place, "where is an XPath, a text")
        return "", ()
    if not where:
        if spaces or "where" in table:
            document.error(document.key((*at, "where" if "where" in table else "namespaces")), "where says nothing")
        return "", ()
    if not actions <= NARROWED | {"connect"}:
        hint = "Make a rule of its own with action = 'subscribe'"
        document.error(document.key((*at, "where")), "where is for actions subscribe and query", hint)
    try:
        compile_predicate(where, namespaces=spaces, argument="where")
    except PredicateError as exc:
        document.error(place, exc.message, exc.hint)
    return where, tuple(sorted(spaces.items()))


def review(document: PolicyDocument, rules: AccessRules) -> None:
    """Note what is allowed, but hardly meant: rules without effect, and files that let nobody in."""
    allowing = [rule for rule in rules.rules if rule.allow]
    denying = [rule for rule in rules.rules if not rule.allow]
    if not rules.rules:
        if document.keys().isdisjoint(QOS_KINDS):  # else the file is about something else
            document.warn(TextPlace(0, 0), "no [[access]] rule: everybody may do everything")
    elif not allowing:
        document.warn(rules.rules[0].place, "no rule allows anything: nobody may do anything")
    elif not (connecting := [rule for rule in allowing if "connect" in rule.actions]):
        document.warn(allowing[0].place, "no rule allows connect: nobody gets in", "Add action = 'connect'")
    elif all(rule.is_of_strangers for rule in connecting) and (named := [r for r in allowing if r.is_of_users]):
        document.warn(named[0].place, "no rule allows connect to a user: none gets in", "Add action = 'connect'")
    seen: dict[tuple[object, ...], AccessRule] = {}
    for rule in rules.rules:
        meaning = (rule.actions, *rule.meaning())
        if meaning in seen:
            document.warn(rule.place, f"says the same as line {seen[meaning].place.line}")
        seen.setdefault(meaning, rule)
    pairs = 0
    for rule in allowing:
        for other in denying:
            pairs += 1
            if other.covers(rule):
                document.warn(rule.place, f"allows nothing: line {other.place.line} denies all of it")
                break
        if pairs > PAIRS_MOST:
            document.warn(rule.place, f"rules behind this one are not compared with the {len(denying)} that deny")
            break


def review_users(document: PolicyDocument, rules: AccessRules, file: str, known: Container[str]) -> None:
    """Note users of rules and groups that have no password in `file`, whose users are `known`: nobody can be one."""
    named: dict[str, TextPlace] = {}
    for rule in rules.rules:
        globs = rule.keys.get("user")
        named |= dict.fromkeys(globs.exact if isinstance(globs, Globs) else (), rule.place)
    for name, members in rules.people.groups.items():
        named |= dict.fromkeys(members.exact, document.key(("group", name)))
    for user, place in sorted(named.items(), key=lambda each: each[1]):
        if user and user not in known:
            message = f"user {user!r} has no password in {file}: nobody can be logged in as that"
            document.warn(place, message, f"jbi users add {user} --file {file}")
