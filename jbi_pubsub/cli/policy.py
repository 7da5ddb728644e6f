"""`jbi policy`: check, show and compare policy files, say why somebody may do something, or not, and who matters; what
concerns the policy manager is in steering.py."""

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
from jbi_pubsub.policy.context import ACTIONS, Addresses, facts_of
from jbi_pubsub.policy.file import Problem, nearest, read
from jbi_pubsub.policy.keep import keep_rules
from jbi_pubsub.policy.policy import OPERATIONS, PolicySet
from jbi_pubsub.policy.policyfile import DELIVERIES, policies_of
from jbi_pubsub.policy.policyfile import review as review_policies
from jbi_pubsub.protocol.services import AdminProxy

from . import policies, simulation, steering
from .near import NearNames
from .settings import Settings, json_option, pass_settings
from .show import Column, counted, printable, show_json, show_table

OWN_COLUMNS: Final = ("rule", "allow", "action")
"""Of a rule; what else it says is one column."""


@click.group(cls=NearNames)
def policy() -> None:
    """Check and explain who may do what, and who matters; manage that for a whole information space.

    \b
    jbi policy check policy.toml
    jbi policy explain --user alice --action subscribe --type intel.Report
    jbi policy new policy.toml name=tracks type=blue_force_tracking importance=4
    jbi policy serve policy.toml
    jbi policy set space.strategy strict
    """


policy.add_command(simulation.simulated)

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
    matters = policies_of(document, rules.people)
    kept = keep_rules(document)
    if not document.errors:
        review(document, rules)
        review_policies(document, matters)
    problems = [*document.errors, *document.warnings]
    if as_json:
        warned = [{"line": 0, "column": 0, "kind": "warning", "message": line, "hint": ""} for line in said]
        told = [*map(_problem, problems), *warned]
        counts = {"rules": len(rules.rules), "policies": len(matters.rules), "keep": len(kept)}
        show_json({"file": str(path), "usable": not document.errors, **counts, "problems": told})
    else:
        for line in [*map(document.told, problems), *said]:
            click.echo(printable(line))
        if not document.errors:
            click.echo(f"{printable(path)}: {policies.usable(matters, len(rules.rules), len(kept))}, can be used")
    if document.errors:
        sys.exit(2)


@policy.command()
@_file
@json_option
@pass_settings
def show(settings: Settings, file: Path | None, as_json: bool) -> None:
    """List the rules and policies of a policy file; without FILE, of the configured one.

    \b
    jbi policy show policy.toml
    """
    path = _path(settings, file)
    rules, matters = _read(path)
    shown = [rule.shown() for rule in rules.rules]
    groups = _groups(rules)
    if as_json:
        people = {"groups": groups, "roles": dict(rules.people.roles)}
        show_json({"file": str(path), **people, "rules": shown, **policies.json_of(matters)})
        return
    for name, members in groups.items():
        click.echo(printable(f"group {name}: {', '.join(members) or 'nobody'}"))
    for user, role in rules.people.roles.items():
        click.echo(printable(f"role of {user}: {role}"))
    columns = (Column("line", right=True), Column("rule"), Column("action", long=True), Column("when", long=True))
    if shown or matters.is_empty:
        show_table(columns, [_row(rule) for rule in shown], title=f"{path}: {counted(len(shown), 'access rule')}")
    policies.show_policies(matters)


@policy.command()
@click.option("--user", default="", help="Who asks, by the name in the certificate; none: who has none.")
@click.option("--action", default="", metavar="ACTION", help=f"One of {', '.join(ACTIONS)}.")
@click.option("--type", "type_name", default="", help="Information object type.")
@click.option("--version", default="", help="Its version.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where the connection comes from.")
@click.option("--client", default="", help="What the application calls itself.")
@click.option("--component", default="", help='At whom: "name@location", "lookup" or "peer".')
@click.option("--recipient", "domain", default="", help="Domain that mail is for.")
@click.option("--role", default="", help="The duty that he says he has; what the file says of him wins.")
@click.option("--delivery", default="queue", show_default=True, help="How a subscription gets objects: queue or mail.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Attribute of the contract.")
@click.option("--size", metavar="SIZE", help='Suppose objects of that size, "20 KB".')
@click.option("--payload-type", default="", help="Suppose payloads of that type, image/jpeg.")
@click.option("--metadata", type=click.Path(path_type=Path), help="Suppose objects with that metadata.")
@click.option("--bandwidth", metavar="RATE", help='Suppose a link of that bandwidth, "300 kbps".')
@click.option("--resource", "resources", multiple=True, metavar="NAME=VALUE", help="Suppose cpu, loss, queue, ... .")
@click.option("--subscription", "uid", metavar="UID", help="With --at: a subscription or registration that stands.")
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
    role: str,
    delivery: str,
    attributes: tuple[str, ...],
    size: str | None,
    payload_type: str,
    metadata: Path | None,
    bandwidth: str | None,
    resources: tuple[str, ...],
    uid: str | None,
    file: Path | None,
    at: str | None,
    as_json: bool,
) -> None:
    """Say whether somebody may do something, by which rule, and why others do not apply; and of what opens a contract
    what importance and preferences it gets, from which policy, and why not from others.

    Ends with 0 if it is allowed, with 1 if it is refused.

    \b
    jbi policy explain --user alice --action subscribe --type intel.Report
    jbi policy explain --action mail --recipient example.org --file policy.toml
    jbi policy explain --user bob --action publish --type cap.alert --at 10.0.0.7:4171
    jbi policy explain --user bob --action subscribe --type uav.imagery --size "60 KB" --bandwidth "300 kbps"
    jbi policy explain --subscription subscription-5f1b... --at 10.0.0.7:4171
    """
    if uid:
        _explain_contract(settings, uid, at, as_json=as_json)
        return
    if not action:
        raise ConfigurationError("--action is missing", hint=f"One of {', '.join(ACTIONS)}")
    if action not in ACTIONS:
        raise ConfigurationError(f"unknown action {action!r}", hint=nearest(action, ACTIONS))
    if delivery not in DELIVERIES:
        raise ConfigurationError(f"unknown delivery {delivery!r}", hint=nearest(delivery, DELIVERIES))
    try:
        Addresses((address,))
    except ValueError as exc:
        raise ConfigurationError(f"--address: {exc}") from exc
    if at and (file or component):
        raise ConfigurationError("--at asks a server about its own rules", hint="Leave --file and --component out")
    if at:
        found = _asked_of(settings, at, Question(action, user, address, client, type_name, version, domain))
    else:
        caller = Caller(address, user=user, client=client, role=role)
        subject = Subject(type_name, version, domain)
        rules, matters = _read(_path(settings, file))
        found = explained(rules, caller, cast("Action", action), subject, component=component)
        if action in OPERATIONS and not matters.is_empty:
            suppose = policies.supposed(size, payload_type, metadata, [*resources, *_bandwidth(bandwidth)])
            facts = facts_of(
                caller, action, type_name, version, delivery=delivery, component=component,
                attributes=dict(_pair(text) for text in attributes),
            )  # fmt: skip
            found["quality"] = policies.explained(matters, facts, suppose)
    if as_json:
        show_json(found)
    else:
        _tell(found, user or address, f"{action} {type_name} {domain}".split())
        if found.get("quality"):
            policies.tell_quality(found["quality"])
    sys.exit(0 if found["allowed"] else 1)


@policy.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@json_option
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Say what differs between two policy files, whatever the order of their rules and policies.

    Ends with 0 if they say the same, with 1 if not.

    \b
    jbi policy diff policy.toml policy.new
    """
    (one, were), (other, will_be) = _read(before), _read(after)
    matters = policies.differences(were, will_be)
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
        show_json({"removed": gone, "added": come, "people": people, "policies": matters})
    else:
        for sign, rules in (("-", gone), ("+", come)):
            for rule in rules:
                click.echo(printable(f"{sign} {_sentence(rule)}"))
        for each in people:
            click.echo(printable(f"~ {each['kind']} {each['name']}: {_said(each['before'])} -> {_said(each['after'])}"))
        policies.tell_differences(matters)
        if not (gone or come or people or matters):
            click.echo("they say the same")
    sys.exit(1 if gone or come or people or matters else 0)


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("said", nargs=-1, metavar="[KEY=VALUE]...")
def new(file: Path, said: tuple[str, ...]) -> None:
    """Write a policy behind what FILE says, if all of it can be used then; without KEY=VALUE, ask for them.

    \b
    jbi policy new policy.toml name=tracks type=blue_force_tracking importance=4 preference=BFTrack
    jbi policy new policy.toml name=large "when=size > '50 KB'" importance=1 "deadline=5 s"
    """
    for line in policies.append_policy(file, policies.as_table(said)).splitlines():
        click.echo(printable(line))


for command in (steering.serve, steering.apply, steering.set_value, steering.history, steering.rollback):
    policy.add_command(command)


def _path(settings: Settings, file: Path | None) -> Path:
    configured = settings.load().policy.file
    if file is None and not configured:
        raise ConfigurationError("no policy file is configured", hint="Name one, or set [policy] file")
    return file or Path(configured)


def _read(path: Path) -> tuple[AccessRules, PolicySet]:
    """Raises PolicyError."""
    document, _ = read(path)
    rules = access_rules(document)
    matters = policies_of(document, rules.people)
    keep_rules(document)
    document.check()
    return rules, matters


def _bandwidth(said: str | None) -> list[str]:
    return [] if said is None else [f"bandwidth={said}"]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--attribute {text!r} is not NAME=VALUE")
    return name, value


def _asked_of(settings: Settings, at: str, question: Question) -> dict[str, Any]:
    config = settings.load()
    client = ControlClient(
        ServiceRef("", ADMIN, (check_endpoint(at),)), config.security(), timeout=config.lookup.timeout
    )
    try:
        return client.call("explain", dict[str, Any], question)
    finally:
        client.close()


def _explain_contract(settings: Settings, uid: str, at: str | None, *, as_json: bool) -> None:
    if not at:
        raise ConfigurationError("--subscription is asked of a running server", hint="Name it: --at HOST:PORT")
    config = settings.load()
    proxy = AdminProxy(ServiceRef("", ADMIN, (check_endpoint(at),)), config.security(), timeout=config.lookup.timeout)
    try:
        found = proxy.explain_contract(uid)
    finally:
        proxy.close()
    if as_json:
        show_json(found)
    else:
        policies.tell_quality(found)


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
