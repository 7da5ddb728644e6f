"""`jbi policy`: check, show and compare policy files, and say why somebody may do something, or not."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import click

from jbi_pubsub.core.access import ADMIN, Action, Question, Subject
from jbi_pubsub.core.errors import ConfigurationError, PolicyError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Caller, check_endpoint
from jbi_pubsub.policy.access import AccessRules, access_rules, explained, review
from jbi_pubsub.policy.context import ACTIONS
from jbi_pubsub.policy.file import Problem, nearest, read

from .near import NearNames
from .settings import Settings, json_option, pass_settings
from .show import Column, counted, printable, show_json, show_table

OWN_COLUMNS: Final = ("rule", "allow", "action")
"""Of a rule; what else it says is one column."""


@click.group(cls=NearNames)
def policy() -> None:
    """Check and explain who may do what.

    \b
    jbi policy check policy.toml
    jbi policy explain --user alice --action subscribe --type intel.Report
    """


_file = click.argument("file", type=click.Path(path_type=Path), required=False)


@policy.command()
@_file
@json_option
@pass_settings
def check(settings: Settings, file: Path | None, as_json: bool) -> None:
    """Say what is wrong with a policy file, as compilers do; without FILE, with the configured one.

    Ends with 0 if it can be used, whatever the warnings, with 2 if it can't.

    \b
    jbi policy check policy.toml
    policy.toml:7:1: error: unknown key 'usr'. Did you mean 'user'?
    """
    path = _path(settings, file)
    try:
        document, said = read(path, name=str(path))
    except PolicyError as exc:
        if as_json:
            show_json({"file": str(path), "usable": False, "problems": [_failure(exc)]})
            sys.exit(2)
        raise
    rules = access_rules(document)
    if not document.errors:
        review(document, rules)
    problems = [*document.errors, *document.warnings]
    if as_json:
        warned = [{"line": 0, "column": 0, "kind": "warning", "message": line, "hint": ""} for line in said]
        told = [*map(_problem, problems), *warned]
        show_json({"file": str(path), "usable": not document.errors, "rules": len(rules.rules), "problems": told})
    else:
        for line in [*map(document.told, problems), *said]:
            click.echo(printable(line))
        if not document.errors:
            click.echo(f"{printable(path)}: {counted(len(rules.rules), 'access rule')}, can be used")
    if document.errors:
        sys.exit(2)


@policy.command()
@_file
@json_option
@pass_settings
def show(settings: Settings, file: Path | None, as_json: bool) -> None:
    """List the rules of a policy file; without FILE, of the configured one.

    \b
    jbi policy show policy.toml
    """
    path = _path(settings, file)
    rules = _rules(path)
    shown = [rule.shown() for rule in rules.rules]
    groups = _groups(rules)
    if as_json:
        show_json({"file": str(path), "groups": groups, "roles": dict(rules.people.roles), "rules": shown})
        return
    for name, members in groups.items():
        click.echo(printable(f"group {name}: {', '.join(members) or 'nobody'}"))
    for user, role in rules.people.roles.items():
        click.echo(printable(f"role of {user}: {role}"))
    columns = (Column("line", right=True), Column("rule"), Column("action", long=True), Column("when", long=True))
    show_table(columns, [_row(rule) for rule in shown], title=f"{path}: {counted(len(shown), 'access rule')}")


@policy.command()
@click.option("--user", default="", help="Who asks, by the name in the certificate; none: who has none.")
@click.option("--action", required=True, metavar="ACTION", help=f"One of {', '.join(ACTIONS)}.")
@click.option("--type", "type_name", default="", help="Information object type.")
@click.option("--version", default="", help="Its version.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where the connection comes from.")
@click.option("--client", default="", help="What the application calls itself.")
@click.option("--component", default="", help='At whom: "name@location", "lookup" or "peer".')
@click.option("--recipient", "domain", default="", help="Domain that mail is for.")
@click.option("--file", type=click.Path(path_type=Path), help="Policy file; default the configured one.")
@click.option("--at", "at", metavar="HOST:PORT", help="Ask a running server instead; you must be its administrator.")
@json_option
@pass_settings
def explain(
    settings: Settings,
    user: str,
    action: str,
    type_name: str,
    version: str,
    address: str,
    client: str,
    component: str,
    domain: str,
    file: Path | None,
    at: str | None,
    as_json: bool,
) -> None:
    """Say whether somebody may do something, by which rule, and why others do not apply.

    Ends with 0 if it is allowed, with 1 if it is refused.

    \b
    jbi policy explain --user alice --action subscribe --type intel.Report
    jbi policy explain --action mail --recipient example.org --file policy.toml
    jbi policy explain --user bob --action publish --type cap.alert --at 10.0.0.7:4171
    """
    if action not in ACTIONS:
        raise ConfigurationError(f"unknown action {action!r}", hint=nearest(action, ACTIONS))
    if at and (file or component):
        raise ConfigurationError("--at asks a server about its own rules", hint="Leave --file and --component out")
    if at:
        found = _asked_of(settings, at, Question(action, user, address, client, type_name, version, domain))
    else:
        caller = Caller(address, user=user, client=client)
        subject = Subject(type_name, version, domain)
        rules = _rules(_path(settings, file))
        found = explained(rules, caller, cast("Action", action), subject, component=component)
    if as_json:
        show_json(found)
    else:
        _tell(found, user or address, f"{action} {type_name} {domain}".split())
    sys.exit(0 if found["allowed"] else 1)


@policy.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@json_option
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Say what differs between two policy files, whatever the order of their rules.

    Ends with 0 if they say the same, with 1 if not.

    \b
    jbi policy diff policy.toml policy.new
    """
    one, other = _rules(before), _rules(after)
    gone, come = _only_in(one, other), _only_in(other, one)
    people = [
        {"kind": kind, "name": name, "before": was.get(name), "after": will.get(name)}
        for kind, was, will in (
            ("group", _groups(one), _groups(other)),
            ("role", dict(one.people.roles), dict(other.people.roles)),
        )
        for name in sorted({*was, *will})
        if was.get(name) != will.get(name)
    ]
    if as_json:
        show_json({"removed": gone, "added": come, "people": people})
    else:
        for sign, rules in (("-", gone), ("+", come)):
            for rule in rules:
                click.echo(printable(f"{sign} {_sentence(rule)}"))
        for each in people:
            click.echo(printable(f"~ {each['kind']} {each['name']}: {_said(each['before'])} -> {_said(each['after'])}"))
        if not (gone or come or people):
            click.echo("they say the same")
    sys.exit(1 if gone or come or people else 0)


def _path(settings: Settings, file: Path | None) -> Path:
    configured = settings.load().policy.file
    if file is None and not configured:
        raise ConfigurationError("no policy file is configured", hint="Name one, or set [policy] file")
    return file or Path(configured)


def _rules(path: Path) -> AccessRules:
    """Raises PolicyError."""
    document, _ = read(path)
    rules = access_rules(document)
    document.check()
    return rules


def _asked_of(settings: Settings, at: str, question: Question) -> dict[str, Any]:
    config = settings.load()
    client = ControlClient(
        ServiceRef("", ADMIN, (check_endpoint(at),)), config.security(), timeout=config.lookup.timeout
    )
    try:
        return client.call("explain", dict[str, Any], question)
    finally:
        client.close()


def _failure(exc: PolicyError) -> dict[str, Any]:
    facts = {name: exc.facts.get(name, 0) for name in ("line", "column")}
    return {**facts, "kind": "error", "message": exc.message, "hint": exc.hint}


def _problem(problem: Problem) -> dict[str, Any]:
    kind = "error" if problem.is_error else "warning"
    return {**problem.place._asdict(), "kind": kind, "message": problem.message, "hint": problem.hint}


def _row(rule: dict[str, Any]) -> Sequence[object]:
    line = str(rule["rule"]).rpartition(":")[2]
    return line, "allow" if rule["allow"] else "deny", ", ".join(rule.get("action", ["any"])), _when(rule)


def _when(rule: dict[str, Any]) -> str:
    """What a rule says besides its action."""
    keys = {key: value for key, value in rule.items() if key not in (*OWN_COLUMNS, "miss")}
    return ", ".join(f"{key} {_said(value)}" for key, value in keys.items()) or "always"


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " or ".join(map(str, value))
    return "none" if value is None else str(value)


def _sentence(rule: dict[str, Any]) -> str:
    _, verb, actions, when = _row(rule)
    return f"{verb} {actions}: {when}  ({rule['rule']})"


def _tell(found: dict[str, Any], who: str, what: Sequence[str]) -> None:
    verdict = "allowed" if found["allowed"] else "refused"
    told = " ".join(what)
    by = f"by {found['rule']}" if found["rule"] else ("there are no rules" if found["allowed"] else "no rule allows it")
    click.echo(printable(f"{who}: {told}: {verdict}, {by}"))
    if found["where"]:
        click.echo(printable(f"  objects for which {found['where']}"))
    if found.get("groups") or found.get("role"):
        groups = ", ".join(found["groups"]) or "none"
        click.echo(printable(f"  groups: {groups}; role: {found['role'] or 'none'}"))
    for reason in found["reasons"]:
        why = f"does not apply: {reason['miss']}" if reason["miss"] else "applies"
        click.echo(printable(f"  {_sentence(reason)}: {why}"))
    left = found["missed"] - sum(bool(reason["miss"]) for reason in found["reasons"])
    if left > 0:
        click.echo(f"  and {counted(left, 'rule')} about {what[0]} that do not apply")


def _groups(rules: AccessRules) -> dict[str, list[str]]:
    people = rules.people
    return {
        name: [*globs.said, *sorted(f"@{each}" for each in people.within[name])]
        for name, globs in people.groups.items()
    }


def _only_in(rules: AccessRules, others: AccessRules) -> list[dict[str, Any]]:
    theirs = {(rule.actions, *rule.meaning()) for rule in others.rules}
    return [rule.shown() for rule in rules.rules if (rule.actions, *rule.meaning()) not in theirs]
