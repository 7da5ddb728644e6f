"""Policies of a file for quality of service: listed, compared, explained, and new ones written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.quality import Resources
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.core.xpath.language.cost import size_of
from jbi_pubsub.policy.condition import QUANTITIES, Node, about_resources, holds, shown_node
from jbi_pubsub.policy.context import CallerFacts
from jbi_pubsub.policy.file import QOS_KINDS, dumped, nearest
from jbi_pubsub.policy.policy import PolicyRule, shown_value, when_shown
from jbi_pubsub.policy.policyfile import POLICY_KEYS
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.policy.units import Unit, amount, with_unit
from jbi_pubsub.policy.writing import rewritten, value_of

from .near import pair
from .settings import blamed
from .show import Column, counted, printable, show_table

UNITS: Final[Mapping[str, Unit]] = {"deadline": "seconds", "max_size": "bytes"}
RESOURCES: Final = tuple(name for name, (_, group) in QUANTITIES.items() if group == "resource")


def summary(policies: PolicySet) -> list[str]:
    """Number of each that is not there by default."""
    counts = (
        (len(policies.rules), "policy", "policies"),
        (len(policies.tables.get("mission", [])), "mission", "missions"),
        (len(policies.links), "link", "links"),
    )
    return [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]


# -- listed -----------------------------------------------------------------------------------------------------


def shown(rule: PolicyRule) -> dict[str, Any]:
    """A policy as plain data."""
    context: dict[str, Any] = {key: list(matcher.said) for key, matcher in rule.keys.items()}
    context |= {f"attribute {name}": list(globs.said) for name, globs in rule.attributes.items()}
    context |= {} if rule.condition is True else {"when": shown_node(rule.condition)}
    context |= when_shown(rule.effectivity) if rule.effectivity is not None else {}
    return {
        "name": rule.name,
        "line": rule.place.line,
        "precedence": rule.precedence,
        "specificity": rule.specificity,
        "context": context,
        "settings": {name: shown_value(value) for name, value in rule.fields.items()},
        "allow": {name: shown_value(value) for name, value in rule.allow.items()},
        "mission": rule.mission,
    }


def show_policies(policies: PolicySet) -> None:
    """For people: the space, its links, the policies in the order in which they win, and missions."""
    space = policies.space
    if not policies.is_empty:
        shaping = "" if space.shaping else ", nothing is shaped"
        click.echo(f"space: {space.strategy.name}{shaping}")
    for link in space.links:
        rate = "measured" if link.rate is None else f"{link.rate * 8 / 1000:g} kbps"
        click.echo(printable(f"link {link.name}: {rate}"))
    for mission in policies.tables.get("mission", []):
        state = "active" if mission.get("active", True) else "not active"
        click.echo(printable(f"mission {mission['name']}: {state}"))
    rows = []
    for rule in sorted(policies.rules, key=lambda each: each.rank):
        told = shown(rule)
        allow = [f"allow {_told(told['allow'])}"] if told["allow"] else []
        settings = "; ".join([*([_told(told["settings"])] if told["settings"] else []), *allow])
        rows.append((told["line"], rule.name, rule.precedence, settings, _told(told["context"]) or "always"))
    if rows:
        columns = (
            Column("line", right=True), Column("policy", long=True), Column("precedence", right=True),
            Column("says", long=True), Column("when", long=True),
        )  # fmt: skip
        show_table(columns, rows, title=f"{', '.join(summary(policies))}, first those that win")


def _told(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {field_told(key, value)}" for key, value in said.items())


def field_told(name: str, value: object) -> str:
    """A value of a policy as people write it: with its unit; shapes as they follow each other."""
    if isinstance(value, bool):
        return str(value).lower()
    if name in UNITS and isinstance(value, int | float):
        return with_unit(value, UNITS[name])
    if isinstance(value, list):
        is_sequence = name == "shape" or all(isinstance(each, int | float) for each in value)  # numbers: weights
        word = " to " if name == "importance" else ", " if is_sequence else " or "
        return word.join(field_told(name, each) for each in value)
    if isinstance(value, Mapping):
        return "{" + _told({key: each for key, each in value.items() if key != "name"}) + "}"
    return str(value)


# -- compared ---------------------------------------------------------------------------------------------------


def differences(before: PolicySet, after: PolicySet) -> list[dict[str, Any]]:
    """Tables that are not the same in both, whatever their order: kind, name, what each says."""
    return [each for kind in QOS_KINDS for each in changes(kind, _by_name(kind, before), _by_name(kind, after))]


def changes(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Names that do not say the same in both."""
    return [
        {"kind": kind, "name": name, "before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _by_name(kind: str, policies: PolicySet) -> dict[str, Any]:
    said = policies.tables.get(kind, {})
    return {each["name"]: each for each in said} if isinstance(said, list) else dict(said)


def tell_differences(found: Iterable[Mapping[str, Any]]) -> None:
    """For people: a line for each key."""
    for each in found:
        what = f"{each['kind']} {each['name']}"
        before, after = each["before"], each["after"]
        if before is None or after is None:
            sign, said = ("+", after) if before is None else ("-", before)
            click.echo(printable(f"{sign} {what}: {field_told('', said)}"))
        elif not isinstance(before, dict):
            click.echo(printable(f"~ {what}: {field_told('', before)} -> {field_told('', after)}"))
        else:
            for key in sorted({*before, *after}):
                if before.get(key) != after.get(key):
                    was, will = (field_told(key, each.get(key, "not said")) for each in (before, after))
                    click.echo(printable(f"~ {what}: {key}: {was} -> {will}"))


# -- explained --------------------------------------------------------------------------------------------------


@dataclass
class Supposition:
    """An object and resources as a user supposes them; the rest is not known."""

    size: int = -1
    payload_type: str = ""
    document: Element | None = None
    resources: Resources = field(default_factory=Resources)

    def says(self, predicate: Predicate) -> bool | None:
        """Decision of a predicate on the metadata."""
        return None if self.document is None else predicate.decide(self.document, size_of(self.document))

    def holds(self, node: Node) -> bool:
        """Whether what is to be decided yet holds; neither a test of what is not known, nor its negation, does."""
        return holds(about_resources(node, lambda test: test.of(getattr(self.resources, test.name))), self)


def supposed(size: str | None, payload_type: str, metadata: Path | None, resources: Sequence[str]) -> Supposition:
    """From options: "20 KB", a file, "bandwidth=300 kbps". Raises ConfigurationError."""
    given: dict[str, float] = {}
    for text in resources:
        problem = ConfigurationError(f"--resource {text!r} is not NAME=VALUE", hint='For example "cpu=90 %"')
        name, value = pair(text, problem)
        if name not in RESOURCES:
            raise ConfigurationError(f"unknown resource {name!r}", hint=nearest(name, RESOURCES))
        unit = QUANTITIES[name][0]
        with blamed(f"--resource {name}"):
            given[name] = amount(float(value) if unit == "count" else value, unit)
    with blamed("--size"):
        length = -1 if size is None else int(amount(size, "bytes"))
    with blamed(f"--metadata {metadata}"):
        data = metadata.read_bytes() if metadata is not None else b""
    document = parse_metadata(data, what=str(metadata)) if metadata is not None else None
    return Supposition(length, payload_type, document, Resources(**given))


def explained(policies: PolicySet, facts: CallerFacts, suppose: Supposition) -> dict[str, Any]:
    """Quality that a contract would get, and why, as plain data."""
    return policies.explained(facts, now=datetime.now(UTC).timestamp(), holds=suppose.holds)


def tell_quality(found: Mapping[str, Any]) -> None:
    """For people: each field that a policy says something of, its winner, the losers; then what is near."""
    importance = found["fields"]["importance"]
    by = f'by policy "{importance["by"]}"' if importance["by"] else "by default"
    link = f", behind link {found['link']}" if found["link"] else ""
    click.echo(printable(f"importance {importance['value']}, {by}{link}"))
    for name, each in found["fields"].items():
        if name != "importance" and each["by"]:
            click.echo(printable(f'  {name} {field_told(name, each["value"])}, by "{each["by"]}"'))
        for loser in each["losers"]:
            click.echo(printable(f'    not {field_told(name, loser["value"])} of "{loser["policy"]}": {loser["why"]}'))
    for each in found["if"]:
        verdict = "holds" if each["holds"] else "does not hold, or is not known"
        click.echo(printable(f'  "{each["policy"]}" if {each["condition"]}: {verdict}'))
    for name, policy in found["reduced"]:
        by = f'policy "{policy}"' if policy else "the default"
        click.echo(printable(f"  less {name} than requested, by {by}"))
    for each in found["near"]:
        click.echo(printable(f'  "{each["policy"]}" does not apply: {each["why"]}'))


# -- written ----------------------------------------------------------------------------------------------------


def as_table(words: Sequence[str]) -> dict[str, Any]:
    """A policy's table from KEY=VALUE, or from answers where there are none. Raises ConfigurationError."""
    if not words and not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask at", hint="Give NAME=VALUE, for example name=tracks")
    table: dict[str, Any] = {}
    for word in words or list(asked()):
        problem = ConfigurationError(f"{word!r} is not KEY=VALUE", hint='For example importance=4, "deadline=5 s"')
        key, value = pair(word, problem)
        if key not in POLICY_KEYS:
            raise ConfigurationError(f"unknown key {key!r}", hint=nearest(key, POLICY_KEYS))
        table[key] = value_of(key, value)
    return table


def asked() -> Iterator[str]:
    """KEY=VALUE of the answers at the terminal."""
    questions = (
        ("name", "Name of the policy"), ("user", "Users, for example Patrol-* (empty: all)"),
        ("type", "Information object type (empty: all)"), ("action", "publish, subscribe or query (empty: all)"),
        ("when", "Further condition, for example size > '50 KB' (empty: none)"),
        ("importance", "Importance, 1 (least) to 5 (empty: not said)"),
        ("preference", "Preference, for example NoDrop (empty: none)"),
    )  # fmt: skip
    for key, question in questions:
        answer = click.prompt(question, default="", show_default=False).strip()
        if answer:
            yield f"{key}={answer}"


def append_policy(path: Path, table: Mapping[str, Any]) -> str:
    """Write a policy behind what a file says, if all of it can be used then; what was written. Raises PolicyError, or
    ConfigurationError for a file that can't be written."""
    text = dumped({"policy": [table]})

    def longer() -> str:
        try:
            before = path.read_text("utf-8-sig") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigurationError(f"{path} can't be read: {exc}") from exc
        return before + ("\n" if before and not before.endswith("\n") else "") + ("\n" if before else "") + text

    rewritten(path, longer)
    return text


def json_of(policies: PolicySet) -> dict[str, Any]:
    """All that is shown, as plain data."""
    return {
        "space": msgspec.to_builtins(policies.space),
        "missions": {each["name"]: each.get("active", True) for each in policies.tables.get("mission", [])},
        "policies": [shown(rule) for rule in sorted(policies.rules, key=lambda each: each.rank)],
    }


def usable(policies: PolicySet, rules: int, kept: int) -> str:
    """Contents of a file that can be used."""
    told = [counted(kept, "keep rule")] if kept else []
    return ", ".join([counted(rules, "access rule"), *summary(policies), *told])
