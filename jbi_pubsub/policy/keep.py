"""`[[keep]]`: what is archived, and how long. Pure; the first rule whose types match an object's type counts."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from jbi_pubsub.core.access import Impossible
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.history import KeepRule
from jbi_pubsub.core.toml import Where
from jbi_pubsub.core.xpath import compile_predicate

from .context import patterns
from .file import PolicyDocument, flag, nearest, tables_in
from .units import amount

_BOUNDS: Final = {
    "age": partial(amount, unit="seconds"),
    "payload_age": partial(amount, unit="seconds"),
    "bytes": partial(amount, unit="bytes"),
    "count": partial(amount, unit="count"),
}
LONGEST: Final = 1e11
"""Seconds of an age: what an archive can be told (core/history.py), three thousand years."""
KEYS: Final = ("type", *_BOUNDS, "latest_by", "until_durables", "relayed")


def keep_rules(document: PolicyDocument) -> tuple[KeepRule, ...]:
    """The rules of a file, in their order. What is wrong with them is noted in the document."""
    rules: list[KeepRule] = []
    seen: set[str] = set()
    for table, at in tables_in(document, "keep", what="rules", hint="Use globs"):
        rule = _rule(document, table, at)
        if "*" in seen or seen.issuperset(rule.types):
            document.warn(document.key(at), "never counts: a rule before it has all of its types")
        seen.update(rule.types)
        rules.append(rule)
    return tuple(rules)


def judge_keys(document: PolicyDocument, rules: Iterable[KeepRule], type_name: str, impossible: Impossible) -> None:
    """Note a `latest_by` that selects nothing in the documents of a type, whose schema `impossible` asks: all of its
    objects have one key."""
    for number, rule in enumerate(rules):
        if any(fnmatch.fnmatchcase(type_name, each) for each in rule.types):
            for why in impossible(rule.latest_by, {}) if rule.latest_by else ():
                document.warn(document.value(("keep", number, "latest_by")), f"latest_by, for {type_name}: {why}")
            return


def _rule(document: PolicyDocument, table: Mapping[str, Any], at: Where) -> KeepRule:
    for key in table:
        if key not in KEYS:
            document.error(document.key((*at, key)), f"unknown key {key!r}", nearest(key, KEYS))
    types = patterns(document, table, at, "type")
    bounds: dict[str, float | None] = dict.fromkeys(_BOUNDS)
    for key, read in _BOUNDS.items():
        if key in table:
            try:
                bounds[key] = read(table[key])
            except ValueError as exc:
                document.error(document.value((*at, key)), f"{key}: {exc}")
    for key in ("age", "payload_age"):
        if (bounds[key] or 0.0) > LONGEST:
            document.error(document.value((*at, key)), f"{key}: {table[key][:60]!r} is too large")
    count, size = bounds["count"], bounds["bytes"]
    if count is not None and count != int(count):
        document.error(document.value((*at, "count")), f"count: {count:g} is not a whole number")
    return KeepRule(
        name=f"{document.name}:{document.key(at).line}",
        types=types or ("*",),
        age=bounds["age"],
        payload_age=bounds["payload_age"],
        count=int(count) if count is not None else None,
        bytes=int(size) if size is not None else None,
        latest_by=_latest_by(document, table, at),
        until_durables=flag(document, table, at, "until_durables", default=False),
        relayed=flag(document, table, at, "relayed", default=True),
    )


def _latest_by(document: PolicyDocument, table: Mapping[str, Any], at: Where) -> str:
    said = table.get("latest_by", "")
    if not isinstance(said, str) or ("latest_by" in table and not said):
        document.error(document.value((*at, "latest_by")), "latest_by is an XPath, a text")
        return ""
    if said:
        try:
            compile_predicate(said, argument="latest_by")
        except PredicateError as exc:
            document.error(document.value((*at, "latest_by")), exc.message, exc.hint)
    return said
