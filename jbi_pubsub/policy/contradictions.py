"""XPaths of access rules and policies that are never true for a type, by its schema. Pure (see impossible.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from jbi_pubsub.core.access import Impossible, Namespaces
from jbi_pubsub.core.wire.endpoint import Caller

from .access import AccessRule
from .condition import Node, Says, Test, TextTest, replaced, tests_of
from .context import CallerFacts, facts_of
from .file import PolicyProblem
from .policy import PolicyRule
from .values import REPLACE_KEYS

JUDGED_MOST: Final = 50
"""XPaths that are judged for one type, some 20 ms each at most; of more the others may be never true without a word."""
_TYPE_KEYS: Final = ("type", "version")


def contradictions(
    rules: Iterable[AccessRule | PolicyRule], type_name: str, version: str, impossible: Impossible
) -> list[PolicyProblem]:
    """Warnings about what `rules` say of a type whose schema, which `impossible` asks, has no document like that."""
    facts = facts_of(Caller(""), "", type_name, version)
    known: dict[tuple[str, Namespaces], tuple[str, ...]] = {}
    found: dict[PolicyProblem, None] = {}
    for rule in rules:
        if not all(rule.keys[key].any_of(getattr(facts, key)) for key in _TYPE_KEYS if key in rule.keys):
            continue
        for what, expression, namespaces in _written(rule, facts):
            if (asked := (expression, namespaces)) not in known:
                if len(known) >= JUDGED_MOST:
                    return list(found)
                known[asked] = impossible(expression, dict(namespaces))
            said = f"{what}, for {type_name} {version}".rstrip()
            found |= {PolicyProblem(rule.place, f"{said}: {why}", is_error=False): None for why in known[asked]}
    return list(found)


def _written(rule: AccessRule | PolicyRule, facts: CallerFacts) -> Iterator[tuple[str, str, Namespaces]]:
    """XPaths of a rule that count for the type in `facts`: the key that each is in, and its namespaces."""
    if isinstance(rule, AccessRule):
        if rule.where:
            yield "where", rule.where, rule.namespaces
        return

    def for_type(test: Test) -> Node:
        return test.of_facts(facts) if isinstance(test, TextTest) and test.name in _TYPE_KEYS else test

    for test in tests_of(replaced(rule.condition, for_type)):
        if isinstance(test, Says):
            yield f"policy {rule.name!r}, when", test.predicate.expression, test.predicate.namespaces
    replace = rule.fields.get("replace")
    if isinstance(replace, str) and replace not in REPLACE_KEYS:
        yield f"policy {rule.name!r}, replace", replace, ()
