"""The tables of a policy file that say who matters, as policies; `dumped` goes the other way.

`[space]` is what holds for all, `[preference.X]` names some fields, `[[policy]]` is a context and what follows from it,
`[[template]]` a pattern of policies that a `[[mission]]` fills in, `[[link]]` a bottleneck. Nothing that a file says is
passed over: what nobody reads is an error with its place and the nearest right name.
"""

from __future__ import annotations

import datetime as dt
import importlib.resources
import importlib.util
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, get_args

from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.quality import LinkTerms, Space, Strategy, StrategyName
from jbi_pubsub.core.toml import TextPlace, Where

from .condition import ConditionError, Node, Says, TextTest, parse_condition, restricts, tests_of
from .context import Globs, People, check_names, matchers, patterns
from .file import MAX_RULES, PolicyDocument, flag, namespaces_of, nearest, parse, tables_in, texts
from .policy import DAYS, FIELDS, OPERATIONS, SPECIFICITY, Effectivity, Membership, PolicyRule, Value
from .values import ALLOW_READERS, FIELD_READERS, LINK_READERS, NEVER_NONE, REPLACE_KEYS, hours_of, weights_of

CONTEXT: Final = ("user", "group", "role", "client", "component", "address", "type", "version", "delivery")
"""Keys of a context that are globs; beside them `action` and `attribute`."""
DELIVERIES: Final = ("queue", "mail", "peer")
POLICY_KEYS: Final = (
    "name", *CONTEXT, "action", "attribute", "when", "namespaces", "precedence", "preference", *FIELDS, "from", "until",
    "hours", "days", "allow",
)  # fmt: skip
OF_DELIVERIES: Final = frozenset({"shape", "replace", "queue", "oversize"})
"""Keys that have an effect on what is delivered alone."""
PREFERENCE_KEYS: Final = FIELDS[1:]
"""A preference says nothing of importance."""
SPACE_KEYS: Final = ("strategy", "weights", "cpu_weights", "link_weights", "shaping")
TEMPLATE_KEYS: Final = ("name", "parameters", "policy")
MISSION_KEYS: Final = ("name", "use", "active")
LINK_KEYS: Final = ("name", "members", *LINK_READERS)
NAME_MOST: Final = 200
"""Characters of a name."""
PRECEDENCE_MOST: Final = 1_000_000
LINKS_MOST: Final = 1_000
FILLED_MOST: Final = 32 << 20
"""Characters of all policies that missions make of templates."""

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")

Table = Mapping[str, Any]
Preferences = Mapping[str, Mapping[str, Value]]


@cache
def built_in() -> Preferences:
    """The preferences of table 1."""
    text = (importlib.resources.files(__package__) / "data" / "preferences.toml").read_text("utf-8")
    document = parse(text, "preferences.toml")
    found = PolicyReader(document, People({}, {}, {}), known={}).preferences
    document.check()
    return found


class TableReader:
    """Reader of tables of one document; problems are noted there."""

    def __init__(self, document: PolicyDocument, people: People) -> None:
        self._document = document
        self._people = people

    def _error(self, at: Where, message: str, hint: str = "", *, key: bool = False) -> None:
        place = self._document.key(at) if key else self._document.value(at)
        self._document.error(place, message, hint)

    def _known_keys(self, table: Table, at: Where, known: Collection[str]) -> None:
        for key in table:
            if self._document.is_hopeless:
                break
            if key not in known:
                self._error((*at, key), f"unknown key {key!r}", nearest(key, known), key=True)

    def _table(self, kind: str) -> Table:
        found = self._document.get(kind, {})
        if isinstance(found, dict):
            return found
        self._error((kind,), f"[{kind}] is a table", f"Write [{kind}]", key=True)
        return {}

    def _text(self, table: Table, at: Where, key: str, *, needed: bool = False) -> str:
        value = table.get(key)
        if value is None and not needed:
            return ""
        if value is None:
            self._error(at, f"{key} is missing", f'Write {key} = "..."', key=True)
        elif not isinstance(value, str) or not value or len(value) > NAME_MOST:
            self._error((*at, key), f"{key} is a text of 1 to {NAME_MOST} characters")
        else:
            return value
        return ""

    def _measured(self, at: Where, said: object, read_it: Callable[[Any], Any]) -> Any:
        """Result of `read_it` for a value; None when it is wrong."""
        try:
            return read_it(said)
        except ValueError as exc:
            self._error(at, f"{at[-1]}: {exc}")
            return None

    def _values(self, table: Table, at: Where, readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        """Values of those keys that have a reader, as far as they are there and right."""
        return {
            key: value
            for key, reads in readers.items()
            if key in table and (value := self._measured((*at, key), table[key], reads)) is not None
        }

    def _once(self, names: dict[str, TextPlace], name: str, at: Where, what: str) -> None:
        place = self._document.key(at)
        if name and name in names:
            self._document.error(place, f"two of {what} are called {name!r}, here and in line {names[name].line}")
        names.setdefault(name, place)

    def _condition(self, table: Table, at: Where, key: str, *, is_written: bool = True) -> Node:
        said = table.get(key)
        if said is None:
            return True
        where = (*at, key)
        if not isinstance(said, str):
            self._error(where, f"{key} is a condition, a text", "For example \"size > '50 KB'\"")
            return True
        try:
            tree = parse_condition(said, namespaces_of(self._document, table, at))
        except ConditionError as exc:
            place = self._document.inside(where, exc.at) if is_written else self._document.value(where)
            self._document.error(place, f"{key}: {exc.message}", exc.hint)
            return True
        for test in tests_of(tree):
            if isinstance(test, TextTest):
                self._check_test(test, where)
        return tree

    def _check_test(self, test: TextTest, where: Where) -> None:
        if test.name in ("group", "role"):
            check_names(self._document, self._document.value(where), test.name, test.texts.said, self._people)
        elif (known := {"action": OPERATIONS, "delivery": DELIVERIES}.get(test.name)) is not None:
            self._some_of(test.texts.said, known, where, test.name)

    def _some_of(self, said: Sequence[str], known: Sequence[str], at: Where, what: str) -> None:
        for text in said:
            if not Globs((text,)).any_of(known):
                self._error(at, f"unknown {what} {text!r}", nearest(text, known))


class PolicyReader(TableReader):
    """Reader of policies: those that stand by themselves, and those that missions make of templates."""

    def __init__(self, document: PolicyDocument, people: People, known: Preferences | None = None) -> None:
        super().__init__(document, people)
        self._filled = 0
        """Characters of the policies that templates were made to, at most."""
        self.preferences: dict[str, Mapping[str, Value]] = dict(built_in() if known is None else known)
        for name, said in self._table("preference").items():
            at = ("preference", name)
            if not isinstance(said, dict):
                self._error(at, f"preference {name!r} is a table", f"Write [preference.{name}]")
                continue
            self._known_keys(said, at, PREFERENCE_KEYS)
            self.preferences[name] = self._fields(said, at, PREFERENCE_KEYS)

    def policies(self) -> list[PolicyRule]:
        """Those that stand by themselves."""
        return [self._policy(table, at) for table, at in tables_in(self._document, "policy")]

    def _policy(self, table: Table, at: Where, mission: str = "", written: Table | None = None) -> PolicyRule:
        """`written`: what the file says, where `table` is made from a template."""
        self._known_keys(written if written is not None else table, at, POLICY_KEYS)
        condition = self._condition(table, at, "when", is_written=written is None)
        keys = matchers(self._document, table, at, self._people, CONTEXT)
        if isinstance(delivery := keys.get("delivery"), Globs):
            self._some_of(delivery.said, DELIVERIES, (*at, "delivery"), "delivery")
        if (actions := self._actions(table, at)) is not None:
            keys["action"] = actions
        rule = PolicyRule(
            name=self._text(table, at, "name", needed=True),
            place=self._document.key(at),
            keys=keys,
            fields=self._settings(table, at),
            condition=condition,
            attributes=self._attributes(table, at),
            precedence=self._precedence(table, at),
            allow=self._allow(table, at),
            effectivity=self._effectivity(table, at),
            mission=mission,
        )
        if not rule.fields and not rule.allow and table.keys().isdisjoint((*FIELDS, "allow", "preference", "oversize")):
            self._document.warn(rule.place, f"policy {rule.name!r} says nothing", f"There is {', '.join(FIELDS)}")
        if condition is False:
            self._document.warn(self._document.value((*at, "when")), f"policy {rule.name!r} never applies")
        if actions is not None and actions.said == ("publish",):
            for key in sorted(OF_DELIVERIES & table.keys()):
                self._document.warn(
                    self._document.key((*at, key)),
                    f"{key} has no effect on publishers",
                    "Leave action out, or add subscribe",
                )
        return rule

    def _actions(self, table: Table, at: Where) -> Globs | None:
        said = patterns(self._document, table, at, "action")
        if said is None or "*" in said:
            return None
        for text in said:
            if not Globs((text,)).any_of(OPERATIONS):
                hint = nearest(text, OPERATIONS)
                self._error((*at, "action"), f"policies are about publish, subscribe and query, not {text!r}", hint)
        return Globs(action for action in OPERATIONS if Globs(said).any_of((action,)))

    def _attributes(self, table: Table, at: Where) -> Mapping[str, Globs]:
        said = table.get("attribute", {})
        if not isinstance(said, dict):
            self._error((*at, "attribute"), "attribute is a table", 'For example attribute = { area = "Kabul" }')
            return {}
        found = {name: patterns(self._document, said, (*at, "attribute"), name) for name in said}
        return {name: Globs(globs) for name, globs in found.items() if globs is not None}

    def _precedence(self, table: Table, at: Where) -> int:
        value = table.get("precedence", 0)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= PRECEDENCE_MOST:
            return value
        self._error((*at, "precedence"), f"precedence is a whole number from {-PRECEDENCE_MOST} to {PRECEDENCE_MOST}")
        return 0

    def _settings(self, table: Table, at: Where) -> Mapping[str, Value]:
        """Settings of a policy: its own fields, and those of its preference."""
        found: dict[str, Value] = {}
        if "preference" in table:
            name = self._text(table, at, "preference")
            if name and name not in self.preferences:
                hint = nearest(name, self.preferences)
                self._error((*at, "preference"), f"no preference {name!r}", hint)
            found |= self.preferences.get(name, {})
        return found | self._fields(table, at, FIELDS)

    def _fields(self, table: Table, at: Where, names: Sequence[str]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name in names:
            if name in table:
                said = table[name]
                if said == "none" and name not in NEVER_NONE:
                    found[name] = None
                    continue
                value = self._measured((*at, name), said, FIELD_READERS[name])
                if value is not None:
                    found[name] = value
                if name == "replace" and value not in REPLACE_KEYS:
                    self._check_key(str(value), (*at, name))
        return found

    def _check_key(self, said: str, where: Where) -> None:
        """A word that is nearly one of ours is an XPath that finds nothing."""
        if said.isidentifier() and (near := near_name(said, REPLACE_KEYS, 0.7)):
            place = self._document.value(where)
            self._document.warn(place, f"replace: {said!r} is an XPath here", f"Did you mean {near!r}?")

    def _allow(self, table: Table, at: Where) -> Mapping[str, Any]:
        said = table.get("allow", {})
        where = (*at, "allow")
        if not isinstance(said, dict):
            self._error(where, "allow is a table", "For example allow = { importance = [1, 3] }")
            return {}
        self._known_keys(said, where, ALLOW_READERS)
        return self._values(said, where, ALLOW_READERS)

    def _effectivity(self, table: Table, at: Where) -> Effectivity | None:
        begin, until = (self._moment(table, at, key) for key in ("from", "until"))
        if begin is not None and until is not None and begin >= until:
            self._error((*at, "until"), "until is not after from")
        hours = self._measured((*at, "hours"), table["hours"], hours_of) if "hours" in table else None
        days = self._days(table, at)
        if begin is until is hours is days is None:
            return None
        return Effectivity(begin, until, hours, days)

    def _moment(self, table: Table, at: Where, key: str) -> float | None:
        value = table.get(key)
        if value is None:
            return None
        if isinstance(value, dt.datetime) and value.tzinfo is not None and 1970 <= value.year < 9999:
            return value.timestamp()
        is_zoned = isinstance(value, dt.datetime) and value.tzinfo is not None
        what = "is not between 1970 and 9998" if is_zoned else "has no zone"
        what = what if isinstance(value, dt.datetime) else "is not a time"
        self._error((*at, key), f"{key} {what}", "For example 2026-12-24T18:00:00Z, without quotes")
        return None

    def _days(self, table: Table, at: Where) -> frozenset[int] | None:
        said = texts(self._document, table, at, "days")
        if said is None:
            return None
        for text in said:
            if text not in DAYS:
                self._error((*at, "days"), f"unknown day {text!r}", nearest(text, DAYS))
        return frozenset(DAYS.index(text) for text in said if text in DAYS)

    # -- templates and missions ---------------------------------------------------------------------------------

    def missions(self) -> list[PolicyRule]:
        """The policies that active missions make of templates. Those of others are looked at as well."""
        templates = self._templates()
        used: set[str] = set()
        names: dict[str, TextPlace] = {}
        rules: list[PolicyRule] = []
        made = 0
        """Also for missions that are not active."""
        for table, at in tables_in(self._document, "mission"):
            self._known_keys(table, at, MISSION_KEYS)
            name = self._text(table, at, "name", needed=True)
            self._once(names, name, at, "mission")
            is_active = flag(self._document, table, at, "active", default=True)
            if not table.get("use"):
                self._error(at, f"mission {name!r} uses no template", "use = [{ template = ... }]", key=True)
            for use, where in tables_in(self._document, "use", table, at):
                template = self._text(use, where, "template", needed=True)
                if template and template not in templates:
                    self._error((*where, "template"), f"no template {template!r}", nearest(template, templates))
                if template not in templates:
                    continue
                used.add(template)
                filled = self._filled_in(templates[template], use, where, name)
                rules += filled if is_active else []
                made += len(filled)
                if made > MAX_RULES or self._filled > FILLED_MOST:
                    many = f"{MAX_RULES} policies" if made > MAX_RULES else f"{FILLED_MOST >> 20} MB of policies"
                    self._error(at, f"missions make more than {many}", "Use groups and globs", key=True)
                    return rules
        for name, (_, _, at) in templates.items():
            if name not in used:
                self._document.warn(
                    self._document.key(at), f"no mission uses template {name!r}: not all of it is checked"
                )
        return rules

    def _templates(self) -> dict[str, tuple[Table, tuple[str, ...], Where]]:
        """By name: the table, its parameters, and where it stands."""
        found: dict[str, tuple[Table, tuple[str, ...], Where]] = {}
        names: dict[str, TextPlace] = {}
        for table, at in tables_in(self._document, "template"):
            self._known_keys(table, at, TEMPLATE_KEYS)
            name = self._text(table, at, "name", needed=True)
            self._once(names, name, at, "template")
            parameters = texts(self._document, table, at, "parameters") if table.get("parameters") else ()
            for parameter in parameters or ():
                if not re.fullmatch(r"\w+", parameter) or parameter == "template":
                    self._error((*at, "parameters"), f"{parameter!r} can't be a parameter", "Use letters and digits")
            if not table.get("policy"):
                self._error(at, f"template {name!r} has no policy", "Write [[template.policy]]", key=True)
            for policy, where in tables_in(self._document, "policy", table, at):
                self._known_keys(policy, where, POLICY_KEYS)
                for key, placeholder in _placeholders(policy):
                    if placeholder not in (parameters or ()):
                        hint = nearest(placeholder, parameters or ())
                        self._error((*where, key), f"{placeholder!r} is not a parameter of template {name!r}", hint)
            found.setdefault(name, (table, parameters or (), at))
        return found

    def _filled_in(
        self, template: tuple[Table, tuple[str, ...], Where], use: Table, where: Where, mission: str
    ) -> list[PolicyRule]:
        table, parameters, at = template
        values: dict[str, str] = {}
        for name in parameters:
            value = use.get(name)
            if not isinstance(value, str) or len(value) > NAME_MOST:
                problem = "is missing" if value is None else f"is a text of at most {NAME_MOST} characters"
                self._error((*where, name), f"parameter {name!r} {problem}")
            else:
                values[name] = value
        for name in use:
            if name not in ("template", *parameters):
                self._error((*where, name), f"unknown parameter {name!r}", nearest(name, parameters), key=True)
        if len(values) < len(parameters):
            return []
        made = []
        for policy, place in tables_in(self._document, "policy", table, at):
            for key, placeholder in _placeholders(policy):
                if key == "when" and re.search(r"[\"'\\]", values.get(placeholder, "")):
                    self._error((*where, placeholder), f"{placeholder!r} is used in `when`: it can't have quotes")
            self._filled += sum(map(len, _texts_in(policy))) + NAME_MOST * len(_placeholders(policy))
            if self._filled > FILLED_MOST:
                break  # the longest that it could become; said by whoever asked
            before = len(self._document.errors)
            made.append(self._policy(_substituted(policy, values), place, mission, written=policy))
            if len(self._document.errors) > before:
                self._error(where, f"mission {mission!r} makes policies that can't be used")
        return made


class SpaceReader(TableReader):
    """Reader of what holds for all, and of its bottlenecks."""

    def space(self, links: Sequence[Membership]) -> Space:
        """The strategy, whether payloads are shaped, and the bottlenecks."""
        table, at = self._table("space"), ("space",)
        self._known_keys(table, at, SPACE_KEYS)
        name = table.get("strategy", "weighted_fair")
        if name not in get_args(StrategyName):
            hint = nearest(str(name), get_args(StrategyName))
            self._error((*at, "strategy"), f"unknown strategy {str(name)[:NAME_MOST]!r}", hint)
            name = "weighted_fair"
        weights = {key: self._measured((*at, key), table[key], weights_of) for key in SPACE_KEYS[1:4] if key in table}
        both = weights.get("weights") or Strategy().cpu
        strategy = Strategy(name, weights.get("cpu_weights") or both, weights.get("link_weights") or both)
        shaping = flag(self._document, table, at, "shaping", default=True)
        return Space(strategy=strategy, shaping=shaping, links=tuple(each.terms for each in links))

    def links(self) -> list[Membership]:
        """The bottlenecks, and who is behind them."""
        found, names = list[Membership](), dict[str, TextPlace]()
        for table, at in tables_in(self._document, "link"):
            if len(found) >= LINKS_MOST:
                self._error(at, f"more than {LINKS_MOST} links", key=True)
                break
            self._known_keys(table, at, LINK_KEYS)
            name = self._text(table, at, "name", needed=True)
            self._once(names, name, at, "link")
            members = self._condition(table, at, "members")
            for test in tests_of(members):
                if isinstance(test, Says) or test.group in ("information", "resource"):
                    self._error((*at, "members"), f"{test.name} is not known when a contract opens")
            about = restricts(members)
            specificity = sum(points for points, keys in SPECIFICITY if not about.isdisjoint(keys))
            found.append(Membership(self._link(table, at, name), members, specificity))
        return found

    def _link(self, table: Table, at: Where, name: str) -> LinkTerms:
        terms = LinkTerms(name=name, **self._values(table, at, LINK_READERS))
        if terms.each is not None and terms.rate is not None and terms.each > terms.rate:
            self._error((*at, "each"), "each is more than the rate of the link")
        return terms


def _placeholders(policy: Table) -> list[tuple[str, str]]:
    """Keys of a template's policy, and what stands in braces in their texts."""
    return [
        (key, found[1])
        for key, value in policy.items()
        for text in _texts_in(value)
        for found in _PLACEHOLDER.finditer(text)
    ]


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in itertools.chain(value, value.values()) if isinstance(value, dict) else value:
            yield from _texts_in(each)


def _substituted(value: Any, values: Mapping[str, str]) -> Any:
    """With the parameters in place, once: what a value says is not looked at again."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_substituted(each, values) for each in value]
    if isinstance(value, dict):
        return {_substituted(key, values): _substituted(each, values) for key, each in value.items()}
    return value
